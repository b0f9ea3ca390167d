"""What a rank of a pool does: it receives calls, makes them, and sends their results or errors."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rankwise._native import end_with, version
from rankwise.contract import errors
from rankwise.contract.errors import RankwiseError
from rankwise.group import default_group
from rankwise.initialize import init
from rankwise.launch.spawn_worker import cannot_travel, error_report, pickler
from rankwise.pool import wire
from rankwise.pool.pickled import call_of
from rankwise.system.settings import Settings

Reply = tuple[bytes, list[Any]]


class Server:
    """Answers the messages of one client. meet: makes a group of all ranks anew."""

    def __init__(self, meet: Callable[[], None]) -> None:
        self._meet = meet
        self._receiving = False
        self._calling = False
        self._interrupted = False

    @contextmanager
    def interruptible(self, connection: socket.socket) -> Iterator[None]:
        """A context in which SIGINT interrupts the present call, and has no effect between two calls.

        A call that is only about to be received is interrupted when it begins.
        """

        def interrupt(signum: int, frame: object) -> None:
            if self._calling:
                raise KeyboardInterrupt
            self._interrupted = self._receiving or _readable(connection)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def receive(self, connection: socket.socket) -> wire.Message | None:
        """The message of the next call; None if the client is gone. Raises BlockingIOError if there is none yet."""
        self._receiving = True  # from when the message leaves the connection until the call begins
        try:
            return wire.receive(connection, wire.NOW)
        except BlockingIOError:
            self._receiving = False
            self._interrupted = self._interrupted and _readable(connection)
            raise

    def answer(self, kind: bytes, parts: wire.Parts) -> Reply:
        """Do what a message asks.

        In a child that the call has forked, and that leaves it, this ends the child as the call ends.
        """
        if kind.islower():
            *parts, path = parts
            sys.path[:] = pickle.loads(path)
            kind = kind.upper()
        failure, pid = errors.latest_failure, os.getpid()
        try:
            result = self._interruptibly(self._meet if kind == wire.MEET else lambda: call_of(parts)())
            if os.getpid() != pid:
                sys.exit()
            reply = _parts_of_result(result)
        except BaseException as error:
            if os.getpid() != pid:
                raise
            if kind == wire.CALL:
                _abort(f"it raised {type(error).__name__}")
            return wire.ERROR, [error_report(error, __file__)]
        well = kind == wire.MEET or errors.latest_failure is failure
        return wire.RESULT if well else wire.FAILED_GROUP, reply

    def _interruptibly(self, call: Callable[[], Any]) -> Any:
        self._calling = True
        try:
            if self._interrupted:
                raise KeyboardInterrupt
            return call()
        finally:
            self._receiving = self._calling = self._interrupted = False


def _readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def _parts_of_result(result: Any) -> list[Any]:
    try:
        return wire.packed(result)
    except BaseException:  # noqa: BLE001 - whatever its classes raise
        pass  # cloudpickle may know how
    try:
        return wire.packed(result, pickler(_parts_of_result))
    except BaseException as error:
        raise cannot_travel(result, error) from error


def _abort(reason: str) -> None:
    """Wake the ranks that wait for this one in a collective."""
    group = default_group.current()
    if group is not None and not group.closed:
        with suppress(RankwiseError):
            group.abort(reason)


# ---- the program of a rank that its pool has started ----

ROOM = 1 << 18  # bytes for messages that the rank has not received; the system may allow less


def main(meeting_fd: int) -> None:
    """Connect to the client and serve it until it closes the connection.

    meeting_fd: a socket that all ranks inherit, over which each sends its client both ends of a connection of its own:
    from the rank's end the client takes back what the rank has not begun. An eventfd comes too, which wakes the rank.
    """
    settings = Settings.read()
    assert settings.launcher_pid is not None
    end_with(settings.launcher_pid)
    server = Server(_meet)
    connection, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    doorbell = os.eventfd(0, os.EFD_CLOEXEC)
    with connection, server.interruptible(connection):
        if not settings.restart:  # a replacement meets the others before their next call on all ranks
            init()
        with socket.socket(fileno=meeting_fd) as meeting, child_end:
            ends = [child_end.fileno(), connection.fileno(), doorbell]
            socket.send_fds(meeting, [pickle.dumps((settings.rank, os.getpid(), version))], ends)
        while True:
            try:
                message = server.receive(connection)
            except BlockingIOError:
                os.read(doorbell, 8)  # which goes on after a signal, as os.eventfd_read does not
                continue
            if message is None:
                return  # the client has closed the connection
            kind, _, number, parts = message
            begin = time.perf_counter_ns()
            kind, parts = server.answer(kind, parts)
            try:
                wire.send(connection, kind, number, parts, took=(time.perf_counter_ns() - begin) // 1000)
            except ConnectionError:
                return  # the client is gone


def _meet() -> None:
    group = default_group.current()
    if group is None:  # this process replaces a lost rank
        init()
    else:
        group.restore()
        group.close()
