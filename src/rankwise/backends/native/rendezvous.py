"""How the ranks of one host meet if no launcher gave them a segment: rank 0 creates one and sends it to the others.

Rank 0 listens on a unix socket whose name the others derive from the user and the job's key (its id and its secret):
an abstract name, or, for containers in several network namespaces, a file in RANKWISE_SOCKET_DIR. Without a secret,
other users can guess the name and take it first, which the ranks then report. Each side checks that the other runs as
the same user and, by an HMAC over both sides' nonces, that it knows the job's key. When all ranks have connected,
rank 0 sends each the segment's descriptor; if that is no longer possible, it sends each the reason. The ranks also
compare their localities, so that a rank of another host is never accepted. A connection that violates the protocol is
dropped, and the others go on.

Ranks watch each other's processes by their pids. A rank in another PID namespace, where its pid is not valid, is
watched by a pidfd, which is valid everywhere: each rank sends its own to rank 0, which passes it on to the ranks that
need it.

The messages, one packet each:
    rank 0 -> rank r   rank 0's nonce
    rank r -> rank 0   rank r's nonce, HMAC over both nonces and the identity, rank r's identity as JSON; its pidfd
    rank 0 -> rank r   HMAC over both nonces and the answer, the answer as JSON: a Failure, or an Admission with the
                       segment's descriptor and the pidfds; another packet follows if there are more of these
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from rankwise import _native
from rankwise.backends.native import locality
from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.contract.settings import Settings

_NONCE = 16
_DIGEST = 32
_PACKET = 4096
_PATIENCE = 5.0  # seconds within which a connection must send its identity
_RETRY = 0.01  # seconds between two attempts to reach rank 0
_PIDFDS = 200  # in one packet; the kernel takes at most 253 descriptors
_HINT = (
    "are all ranks on this host, and their containers, if any, in one network namespace (--network host)? "
    "Is RANKWISE_SECRET, if it is set, the same on all of them?"
)


def meet(job: Job, timeout: float) -> _native.Segment:
    """The job's segment, the same on every rank. All ranks of the job call this, on one host.

    CollectiveTimeout names the ranks that did not arrive; PeerLostError, one that ended meanwhile;
    UnsupportedError, one that cannot share memory with rank 0; MismatchError, one that belongs to another job.
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
    remedy: str = ""

    def error(self, timeout: float) -> RankwiseError:
        if self.kind == "late":
            return CollectiveTimeout(self.why, limit=timeout, missing=tuple(self.ranks), operation="init")
        if self.kind == "lost":
            return PeerLostError(self.why, rank=self.ranks[0], how="ended", operation="init")
        if self.kind == "elsewhere":
            return UnsupportedError("init", "shm", self.why, self.remedy)
        return MismatchError(self.why)


@dataclass(frozen=True)
class Admission:
    """The ranks whose pidfds are in this packet, after the segment's descriptor. more: another packet follows."""

    pidfds: list[int]
    more: bool


def _address(job: Job) -> bytes:
    name = f"rankwise-{locality.user()}-{hmac.digest(_key(job), b'name', 'sha256').hex()[:20]}"
    directory = Settings.read().socket_directory()
    return os.fsencode(f"\0{name}" if directory is None else os.path.join(directory, name))


def _key(job: Job) -> bytes:
    return hashlib.sha256(job.id.encode() + b"\0" + job.secret).digest()


def _sign(job: Job, sender: bytes, nonces: bytes, text: bytes) -> bytes:
    return hmac.digest(_key(job), sender + nonces + text, "sha256")


def _user(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid


def _check_listener(connection: socket.socket) -> None:
    """Raise UnsupportedError if the process that listens at the other end runs as another user."""
    if (uid := _user(connection)) != os.geteuid():
        raise UnsupportedError(
            "init",
            "shm",
            f"a process of user {uid} already listens at the name of this job's socket",
            "start the ranks with `rankwise run`, whose ranks need no socket, or set RANKWISE_SECRET to a new random "
            "text, the same on all ranks, on which the name then depends",
        )


def _identity(job: Job) -> dict[str, Any]:
    """This rank's identity: its rank, its world size, its locality and its PID namespace."""
    return {
        "rank": job.rank,
        "world_size": job.world_size,
        "locality": locality.locality(),
        "pid_namespace": locality.pid_namespace(),
    }


def _own_pidfd() -> list[int]:
    """A pidfd of this process; an empty list if the kernel or a seccomp filter refuses it."""
    try:
        return [os.pidfd_open(os.getpid())]
    except OSError:
        return []


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _host(job: Job, timeout: float) -> _native.Segment:
    end = time.monotonic() + timeout
    meeting = _Meeting(job)
    try:
        with _listening(job, end) as listener:
            failure = meeting.gather(listener, timeout, end)
            meeting.answer(failure)
    finally:
        meeting.close()
    if failure is not None:
        raise failure.error(timeout)
    return meeting.segment


@contextmanager
def _listening(job: Job, end: float) -> Iterator[socket.socket]:
    """A socket that listens at the job's address."""
    address = _address(job)
    abstract = address.startswith(b"\0")
    # A killed process leaves its file behind. So this socket listens at a new file, which then replaces the old one.
    own = address if abstract else address + b"." + secrets.token_hex(4).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        while not _bound(listener, own):
            _has_listener(own)  # raises if it is another user's
            _wait_until_free(end)
        try:
            listener.listen(job.world_size + 16)
            listener.setblocking(False)
            if not abstract:
                try:
                    while _has_listener(address):
                        _wait_until_free(end)
                    os.rename(own, address)
                except PermissionError as error:
                    path = os.fsdecode(address)
                    remedy = "remove that file, or set RANKWISE_SOCKET_DIR to a directory of this user"
                    raise UnsupportedError("init", "shm", f"{path} belongs to another user", remedy) from error
                own = address
            yield listener
        finally:
            if not abstract:
                with suppress(FileNotFoundError):  # someone has cleared the directory
                    os.unlink(own)


def _bound(listener: socket.socket, address: bytes) -> bool:
    try:
        listener.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _has_listener(address: bytes) -> bool:
    """Whether a process of this user listens at `address`. Raises UnsupportedError if another user's does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(0)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # its queue is full
            return True
        _check_listener(probe)
    return True


def _wait_until_free(end: float) -> None:
    if time.monotonic() > end:
        raise MismatchError("init: another process is already rank 0 of this job, or has taken the name of its socket")
    time.sleep(_RETRY)


@dataclass(frozen=True)
class _Accepted:
    """A rank that takes part in the meeting. pidfd: a list with its descriptor, empty if it has none."""

    rank: int
    nonces: bytes
    pid_namespace: int
    pidfd: list[int]


class _Meeting:
    """Rank 0's side, which serves all connections at once, so that none can delay the others."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.identity = _identity(job)
        self.segment = _native.Segment.create(job.world_size)
        self.selector = selectors.DefaultSelector()
        self.unverified: dict[socket.socket, tuple[bytes, float]] = {}  # the nonce sent, and the deadline
        self.own = _Accepted(0, b"", self.identity["pid_namespace"], _own_pidfd())
        self.ranks: dict[socket.socket, _Accepted] = {}

    def gather(self, listener: socket.socket, timeout: float, end: float) -> Failure | None:
        """Wait until all ranks have been accepted. Returns a Failure if that is impossible."""
        self.selector.register(listener, selectors.EVENT_READ)
        failure = None
        while failure is None and len(self.ranks) < self.job.world_size - 1:
            now = time.monotonic()
            if now >= end:
                missing = tuple(set(range(1, self.job.world_size)) - {its.rank for its in self.ranks.values()})
                why = f"init: ranks {list(missing)} did not join within {timeout:g} s; {_HINT}"
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
                    rank = self.ranks[connection].rank
                    failure = Failure("lost", f"init: rank {rank} ended before all ranks had come", (rank,))
                else:
                    failure = self.receive(connection)
                if failure is not None:
                    break
        return failure or self.unwatched()

    def unwatched(self) -> Failure | None:
        """A Failure if ranks are in several PID namespaces and one has no pidfd: its death would go unnoticed."""
        everyone = (self.own, *self.ranks.values())
        without = tuple(its.rank for its in everyone if not its.pidfd)
        if not without or len({its.pid_namespace for its in everyone}) == 1:
            return None
        why = f"the ranks are in several PID namespaces, and the system gives rank {without[0]} no pidfd"
        return Failure("elsewhere", why, without, "start all containers with one PID namespace, as by --pid host")

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # the connection is already closed
            return
        connection.setblocking(False)
        nonce = secrets.token_bytes(_NONCE)
        if _user(connection) == os.geteuid() and _send(connection, nonce):
            self.unverified[connection] = (nonce, time.monotonic() + _PATIENCE)
            self.selector.register(connection, selectors.EVENT_READ)
        else:
            connection.close()

    def receive(self, connection: socket.socket) -> Failure | None:
        """Read a new connection's identity: accept it, drop it, or return why the ranks cannot meet."""
        nonces = self.unverified[connection][0]
        try:
            packet, pidfd, _, _ = socket.recv_fds(connection, _PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            packet, pidfd = b"", []
        nonces += packet[:_NONCE]
        signature, text = packet[_NONCE : _NONCE + _DIGEST], packet[_NONCE + _DIGEST :]
        if not hmac.compare_digest(signature, _sign(self.job, b"r", nonces, text)):
            _close(pidfd)
            self.drop(connection)
            return None
        del self.unverified[connection]
        identity = json.loads(text)
        rank, world_size = identity["rank"], identity["world_size"]
        duplicate = any(rank == its.rank for its in self.ranks.values())
        self.ranks[connection] = _Accepted(rank, nonces, identity["pid_namespace"], pidfd)
        if world_size != self.job.world_size:
            why = f"init: rank {rank} expects {world_size} ranks, rank 0 expects {self.job.world_size}"
            return Failure("mismatch", why, (rank,))
        if duplicate or rank == 0:
            return Failure("mismatch", f"init: two processes are rank {rank} of this job", (rank,))
        part = locality.difference(self.identity["locality"], identity["locality"])
        if part is not None:
            why = f"the {part} of rank {rank} differs from rank 0's"
            return Failure("elsewhere", why, (rank,), locality.REMEDIES[part])
        return None

    def answer(self, failure: Failure | None) -> None:
        """Send every accepted rank the segment, and the pidfds that it needs, or the failure."""
        for connection, its in self.ranks.items():
            if failure is not None:
                self.send(connection, failure, [])
                continue
            foreign = self.foreign(its)
            for first in range(0, max(1, len(foreign)), _PIDFDS):
                part = foreign[first : first + _PIDFDS]
                admission = Admission([other.rank for other in part], first + _PIDFDS < len(foreign))
                self.send(connection, admission, [self.segment.fd, *(other.pidfd[0] for other in part)])
        if failure is None:
            for other in self.foreign(self.own):
                self.segment.add_pidfd(other.rank, other.pidfd[0])

    def foreign(self, its: _Accepted) -> list[_Accepted]:
        """The ranks in other PID namespaces than this one."""
        return [other for other in (self.own, *self.ranks.values()) if other.pid_namespace != its.pid_namespace]

    def send(self, connection: socket.socket, answer: Failure | Admission, fds: list[int]) -> None:
        text = json.dumps(asdict(answer)).encode()
        _send(connection, _sign(self.job, b"0", self.ranks[connection].nonces, text) + text, fds)

    def drop(self, connection: socket.socket) -> None:
        del self.unverified[connection]
        self.selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        for connection in (*self.unverified, *self.ranks):
            connection.close()
        for its in (self.own, *self.ranks.values()):
            _close(its.pidfd)
        self.selector.close()


def _send(connection: socket.socket, packet: bytes, fds: list[int] | None = None) -> bool:
    """Send a packet. Returns False if the other side is gone, which is detected elsewhere."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.send_fds(connection, [packet], fds or [])
            return True
        except OSError as error:
            # The kernel limits a user's descriptors in flight; the other ranks will soon have received theirs.
            if error.errno != errno.ETOOMANYREFS or time.monotonic() > end:
                return False
        time.sleep(_RETRY)


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
            except (ConnectionRefusedError, FileNotFoundError):
                answer = None  # rank 0 is not listening yet
            except (ConnectionError, PermissionError, TimeoutError, BlockingIOError) as error:
                answer, why = None, str(error)
        if isinstance(answer, Failure):
            raise answer.error(timeout)
        if answer is not None:
            return answer
        time.sleep(_RETRY)
    raise CollectiveTimeout(
        f"init: rank 0 could not be found within {timeout:g} s ({why}); {_HINT}",
        limit=timeout,
        missing=(0,),
        operation="init",
    )


def _introduce(job: Job, connection: socket.socket) -> _native.Segment | Failure:
    """Send this rank's identity and receive the answer. Raises ConnectionError if the other side is not our rank 0."""
    _check_listener(connection)
    theirs, mine = connection.recv(_NONCE), secrets.token_bytes(_NONCE)
    text = json.dumps(_identity(job)).encode()
    pidfd = _own_pidfd()
    try:
        socket.send_fds(connection, [mine + _sign(job, b"r", theirs + mine, text) + text], pidfd)
    finally:
        _close(pidfd)
    segment = None
    while True:
        packet, fds, _, _ = socket.recv_fds(connection, _PACKET, 1 + _PIDFDS, socket.MSG_CMSG_CLOEXEC)
        try:
            text = packet[_DIGEST:]
            if not hmac.compare_digest(packet[:_DIGEST], _sign(job, b"0", theirs + mine, text)):
                raise ConnectionError("the process that listens under this job's name belongs to another job")
            answer = json.loads(text)
            if "kind" in answer:
                return Failure(**answer)
            admission = Admission(**answer)
            if len(fds) != 1 + len(admission.pidfds):
                raise RankwiseError("init: the segment could not be received: too many open files?")
            if segment is None:
                segment = _native.Segment.attach(fds[0])
            for rank, fd in zip(admission.pidfds, fds[1:], strict=True):
                segment.add_pidfd(rank, fd)
            if not admission.more:
                return segment
        finally:
            _close(fds)
