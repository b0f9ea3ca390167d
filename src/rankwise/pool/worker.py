"""The program of a rank of a pool that has started its own ranks."""

from __future__ import annotations

import os
import pickle
import socket
import time

from rankwise._native import end_with
from rankwise.group import default_group
from rankwise.initialize import init
from rankwise.pool import wire
from rankwise.pool.serving import Server
from rankwise.system.settings import Settings

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
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    bell = os.eventfd(0, os.EFD_CLOEXEC)
    with connection, server.interruptible(connection):
        if not settings.restart:  # a replacement meets the others before their next call on all ranks
            init()
        with socket.socket(fileno=meeting_fd) as meeting, theirs:
            ends = [theirs.fileno(), connection.fileno(), bell]
            socket.send_fds(meeting, [pickle.dumps((settings.rank, os.getpid()))], ends)
        while True:
            try:
                message = wire.receive(connection, wire.NOW)
            except BlockingIOError:
                os.eventfd_read(bell)
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
