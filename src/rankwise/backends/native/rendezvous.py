"""How the ranks of one host meet if no launcher gave them a segment: rank 0 creates one and sends it to the others.

Rank 0 listens on an abstract unix socket whose name the others derive from the user and the job. Each
side checks that the other runs as the same user and, by an HMAC over both sides' nonces, that it knows
the job's key. When all ranks have connected, rank 0 sends each the segment's descriptor; if that is no
longer possible, it sends each the reason. An abstract name exists only within one network namespace, and
the ranks also compare the kernel's boot id and their namespaces, so that a rank of another host or
container is never accepted. A connection that violates the protocol is dropped, and the others go on.

The messages, one packet each:
    rank 0 -> rank r   rank 0's nonce
    rank r -> rank 0   rank r's nonce, HMAC over both nonces and the identity, rank r's identity as JSON
    rank 0 -> rank r   HMAC over both nonces and the answer, answer: a Failure as JSON, or nothing and the descriptor
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankwise import _native
from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.job import Job

_NONCE = 16
_DIGEST = 32
_PACKET = 4096
_PATIENCE = 5.0  # seconds within which a connection must send its identity
_RETRY = 0.01  # seconds between two attempts to reach rank 0


def meet(job: Job, timeout: float) -> _native.Segment:
    """The job's segment, the same on every rank. All ranks of the job call this, on one host.

    CollectiveTimeout names the ranks that did not arrive; PeerLostError, one that ended meanwhile;
    UnsupportedError, one in another container; MismatchError, one that belongs to another job.
    """
    if job.world_size == 1:
        return _native.Segment.create(1)
    if not job.id:
        raise UnsupportedError("init", "shm", f"{job.launcher or 'the environment'} gives the job no id to meet by")
    return _host(job, timeout) if job.rank == 0 else _join(job, timeout)


@dataclass(frozen=True)
class Failure:
    """Why the ranks cannot meet, in a form that can be sent. kind: late, lost, elsewhere or mismatch."""

    kind: str
    why: str
    ranks: tuple[int, ...]

    def error(self, timeout: float) -> RankwiseError:
        if self.kind == "late":
            return CollectiveTimeout(self.why, limit=timeout, missing=tuple(self.ranks), operation="init")
        if self.kind == "lost":
            return PeerLostError(self.why, rank=self.ranks[0], how="ended", operation="init")
        if self.kind == "elsewhere":
            return UnsupportedError("init", "shm", self.why, "start all ranks on one host, in one container")
        return MismatchError(self.why)


def _address(job: Job) -> bytes:
    return f"\0rankwise-{os.geteuid()}-{hashlib.sha256(job.id.encode()).hexdigest()[:32]}".encode()


def _sign(job: Job, sender: bytes, nonces: bytes, text: bytes) -> bytes:
    key = hashlib.sha256(job.id.encode() + b"\0" + job.secret).digest()
    return hmac.digest(key, sender + nonces + text, "sha256")


def _same_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid == os.geteuid()


def locality() -> dict[str, str | int]:
    """The locality of this process. Processes of equal locality can share memory and watch each other."""
    return {
        "host": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "container (pid namespace)": os.stat("/proc/self/ns/pid").st_ino,
        "container (network namespace)": os.stat("/proc/self/ns/net").st_ino,
    }


def _identity(job: Job) -> dict[str, Any]:
    """This rank's identity: its rank, its world size and its locality."""
    return {"rank": job.rank, "world_size": job.world_size, "locality": locality()}


def _host(job: Job, timeout: float) -> _native.Segment:
    end = time.monotonic() + timeout
    meeting = _Meeting(job)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            _bind(listener, job, end)
            listener.listen(job.world_size + 16)
            listener.setblocking(False)
            failure = meeting.gather(listener, timeout, end)
            meeting.answer(failure)
        finally:
            meeting.close()
    if failure is not None:
        raise failure.error(timeout)
    return meeting.segment


def _bind(listener: socket.socket, job: Job, end: float) -> None:
    while True:
        try:
            listener.bind(_address(job))
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        if time.monotonic() > end:
            raise MismatchError("init: another process of this user is already rank 0 of this job")
        time.sleep(_RETRY)


class _Meeting:
    """Rank 0's side, which serves all connections at once, so that none can delay the others."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.identity = _identity(job)
        self.segment = _native.Segment.create(job.world_size)
        self.selector = selectors.DefaultSelector()
        self.unverified: dict[socket.socket, tuple[bytes, float]] = {}  # the nonce sent, and the deadline
        self.ranks: dict[socket.socket, tuple[int, bytes]] = {}  # the accepted ranks: rank, both nonces

    def gather(self, listener: socket.socket, timeout: float, end: float) -> Failure | None:
        """Wait until all ranks have been accepted. Returns a Failure if that is impossible."""
        self.selector.register(listener, selectors.EVENT_READ)
        failure = None
        while failure is None and len(self.ranks) < self.job.world_size - 1:
            now = time.monotonic()
            if now >= end:
                missing = tuple(set(range(1, self.job.world_size)) - {rank for rank, _ in self.ranks.values()})
                why = f"init: ranks {list(missing)} did not come within {timeout:g} s; are all ranks on this host?"
                return Failure("late", why, missing)
            for silent in [c for c, (_, until) in self.unverified.items() if until <= now]:
                self.drop(silent)
            for key, _ in self.selector.select(min(end - now, 0.2)):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    self.accept(listener)
                elif connection in self.ranks:
                    # A rank sends nothing more before the answer, so its process has ended.
                    rank = self.ranks[connection][0]
                    failure = Failure("lost", f"init: rank {rank} ended before all ranks had come", (rank,))
                else:
                    failure = self.receive(connection)
                if failure is not None:
                    break
        return failure

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the connection is already closed
            return
        connection.setblocking(False)
        nonce = secrets.token_bytes(_NONCE)
        if _same_user(connection) and _send(connection, nonce):
            self.unverified[connection] = (nonce, time.monotonic() + _PATIENCE)
            self.selector.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def receive(self, connection: socket.socket) -> Failure | None:
        """Read a new connection's identity: accept it, drop it, or return why the ranks cannot meet."""
        nonces = self.unverified[connection][0]
        try:
            packet = connection.recv(_PACKET)
        except OSError:
            packet = b""
        nonces += packet[:_NONCE]
        signature, text = packet[_NONCE : _NONCE + _DIGEST], packet[_NONCE + _DIGEST :]
        if not hmac.compare_digest(signature, _sign(self.job, b"r", nonces, text)):
            self.drop(connection)
            return None
        del self.unverified[connection]
        identity = json.loads(text)
        rank, world_size = identity["rank"], identity["world_size"]
        duplicate = any(rank == other for other, _ in self.ranks.values())
        self.ranks[connection] = (rank, nonces)
        if world_size != self.job.world_size:
            why = f"init: rank {rank} expects {world_size} ranks, rank 0 expects {self.job.world_size}"
            return Failure("mismatch", why, (rank,))
        if duplicate or rank == 0:
            return Failure("mismatch", f"init: two processes are rank {rank} of this job", (rank,))
        for part, here in self.identity["locality"].items():
            if identity["locality"][part] != here:
                return Failure("elsewhere", f"rank {rank} is on another {part} than rank 0", (rank,))
        return None

    def answer(self, failure: Failure | None) -> None:
        """Send every accepted rank the segment or the failure."""
        text = b"" if failure is None else json.dumps(asdict(failure)).encode()
        for connection, (_, nonces) in self.ranks.items():
            _send(connection, _sign(self.job, b"0", nonces, text) + text, [] if failure else [self.segment.fd])

    def drop(self, connection: socket.socket) -> None:
        del self.unverified[connection]
        self.selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        for connection in (*self.unverified, *self.ranks):
            connection.close()
        self.selector.close()


def _send(connection: socket.socket, packet: bytes, fds: list[int] | None = None) -> bool:
    """Send a packet. Returns False if the other side is gone, which is detected elsewhere."""
    try:
        socket.send_fds(connection, [packet], fds or [])
    except OSError:
        return False
    return True


def _join(job: Job, timeout: float) -> _native.Segment:
    end = time.monotonic() + timeout
    why = "no process listens under this job's name"
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            # Slightly longer than rank 0 waits, since its answer is more informative than our own timeout.
            connection.settimeout(end - time.monotonic() + 1.0)
            try:
                connection.connect(_address(job))
                answer = _introduce(job, connection)
            except ConnectionRefusedError:
                answer = None  # rank 0 is not listening yet
            except (ConnectionError, TimeoutError, BlockingIOError) as error:
                answer, why = None, str(error)
        if isinstance(answer, Failure):
            raise answer.error(timeout)
        if answer is not None:
            return answer
        time.sleep(_RETRY)
    raise CollectiveTimeout(
        f"init: rank 0 could not be found within {timeout:g} s ({why}); are all ranks on this host?",
        limit=timeout,
        missing=(0,),
        operation="init",
    )


def _introduce(job: Job, connection: socket.socket) -> _native.Segment | Failure:
    """Send this rank's identity and receive the answer. Raises ConnectionError if the other side is not our rank 0."""
    if not _same_user(connection):
        raise ConnectionError("a process of another user listens under this job's name")
    theirs, mine = connection.recv(_NONCE), secrets.token_bytes(_NONCE)
    text = json.dumps(_identity(job)).encode()
    connection.send(mine + _sign(job, b"r", theirs + mine, text) + text)
    packet, fds, _, _ = socket.recv_fds(connection, _PACKET, 1)
    try:
        answer = packet[_DIGEST:]
        if not hmac.compare_digest(packet[:_DIGEST], _sign(job, b"0", theirs + mine, answer)):
            raise ConnectionError("the process that listens under this job's name belongs to another job")
        if answer:
            return Failure(**json.loads(answer))
        if not fds:
            raise RankwiseError("init: the segment could not be received: too many open files?")
        return _native.Segment.attach(fds[0])
    finally:
        for fd in fds:
            os.close(fd)
