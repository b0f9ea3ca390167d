"""How the ranks of one host meet if no launcher gave them a segment: rank 0 creates one and sends it to the others.

Rank 0 serves a store at a unix socket whose name the others derive from the user and the job's key (its id and its
secret): an abstract name, or, for containers in several network namespaces, a file in RANKWISE_SOCKET_DIR. Without a
secret, other users can guess the name and take it first, which the ranks then report. Each side checks that the other
runs as the same user and knows the job's key. Every rank leaves its identity, and the answer is the segment's
descriptor. The ranks also compare their localities, so that a rank of another host is never accepted.

Ranks watch each other's processes by their pids. A rank in another PID namespace, where its pid is not valid, is
watched by a pidfd, which is valid everywhere: it comes with the rank's identity.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from rankwise import _native
from rankwise.contract.errors import MismatchError, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.meeting.connection import close_all
from rankwise.meeting.gathering import ANSWER, join, lead, opened, other_version, ranks_late
from rankwise.meeting.served_store import StoreClient, StoreServer
from rankwise.system import locality
from rankwise.system.host_memory import user_of
from rankwise.system.settings import Settings

_RETRY = 0.01  # seconds between two attempts to listen
_NEAR = 64  # ranks after this one whose pidfds it keeps; the first few of them that are alive are watched
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
    pidfd = _own_pidfd()
    try:
        return _host(job, timeout, pidfd) if job.rank == 0 else _join(job, timeout, pidfd)
    finally:
        close_all(pidfd)


def _address(job: Job) -> bytes:
    name = f"rankwise-{locality.user()}-{hmac.digest(_key(job), b'name', 'sha256').hex()[:20]}"
    directory = Settings.read().socket_directory()
    return os.fsencode(f"\0{name}" if directory is None else os.path.join(directory, name))


def _key(job: Job) -> bytes:
    return hashlib.sha256(job.id.encode() + b"\0" + job.secret).digest()


def _identity(job: Job) -> dict[str, Any]:
    """This rank's identity: its release, its rank, its world size, its locality and its PID namespace."""
    return {
        "version": _native.version,
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


def _host(job: Job, timeout: float, pidfd: Sequence[int]) -> _native.Segment:
    end = time.monotonic() + timeout
    segment = _native.Segment.create(job.world_size)
    own = _identity(job)

    def accepts(key: str, value: bytes, previous: bytes | None) -> bool:
        _check(own, key, json.loads(value), taken=previous is not None)
        return True

    def left(key: str) -> None:
        rank = int(key)
        text = f"init: rank {rank} ended before all ranks had come"
        raise PeerLostError(text, rank=rank, how="ended", operation="init")

    def decide(identities: list[bytes]) -> bytes:
        spaces = [json.loads(identity)["pid_namespace"] for identity in identities]
        pidfds = [server.fds[str(rank)] for rank in range(job.world_size)] if len(set(spaces)) > 1 else []
        if [] in pidfds:  # a rank's death would go unnoticed
            why = f"the ranks are in several PID namespaces, and the system gives rank {pidfds.index([])} no pidfd"
            raise UnsupportedError("init", "shm", why, "start all containers with one PID namespace, as by --pid host")
        server.fds[ANSWER] = [os.dup(fd) for fd in (segment.fd, *itertools.chain(*pidfds))]
        _watch(segment, spaces, 0, server.fds[ANSWER])
        return json.dumps(spaces).encode()

    address, key = _address(job), _key(job)
    with _listening(address, end) as listener:
        server = StoreServer(listener, key, accepts, left, lambda connection: user_of(connection) == os.geteuid())
        with closing(server):
            server.fds["0"] = [os.dup(fd) for fd in pidfd]
            lead(server, {0: json.dumps(own).encode()}, job.world_size, end, ranks_late(timeout, _HINT), decide)
    return segment


def _check(own: dict[str, Any], key: str, identity: dict[str, Any], *, taken: bool) -> None:
    """Raise an error if a rank cannot meet rank 0. If its version differs, nothing else is looked at."""
    if (version := identity.get("version")) != own["version"]:
        raise other_version(key, version, own["version"])
    rank, world_size = identity["rank"], identity["world_size"]
    if world_size != own["world_size"]:
        raise MismatchError(f"init: rank {rank} expects {world_size} ranks, rank 0 expects {own['world_size']}")
    if taken or rank == 0:
        raise MismatchError(f"init: two processes are rank {rank} of this job")
    part = locality.difference(own["locality"], identity["locality"])
    if part is not None:
        why = f"the {part} of rank {rank} differs from rank 0's"
        raise UnsupportedError("init", "shm", why, locality.REMEDIES[part])


def _join(job: Job, timeout: float, pidfd: Sequence[int]) -> _native.Segment:
    address, key, end = _address(job), _key(job), time.monotonic() + timeout

    def connect(deadline: float) -> StoreClient:
        return StoreClient(_connected(address, deadline), key, deadline, pidfd)

    identity = json.dumps(_identity(job)).encode()
    client, answer = join(connect, job.rank, identity, end, ranks_late(timeout, _HINT))
    fds = client.connection.take_fds()
    client.close()
    try:
        spaces = json.loads(opened(answer))
        if len(fds) != (1 if len(set(spaces)) == 1 else 1 + job.world_size):
            raise RankwiseError("init: the segment could not be received: too many open files?")
        segment = _native.Segment.attach(fds[0])
        _watch(segment, spaces, job.rank, fds)
        return segment
    finally:
        close_all(fds)


def _watch(segment: _native.Segment, spaces: Sequence[int], own: int, fds: Sequence[int]) -> None:
    """Keep the pidfds by which this rank watches other PID namespaces. fds: the segment's, then each rank's."""
    for distance in range(1, min(_NEAR + 1, len(spaces))):
        rank = (own + distance) % len(spaces)
        if spaces[rank] != spaces[own]:
            segment.add_pidfd(rank, fds[1 + rank])


def _connected(address: bytes, deadline: float) -> socket.socket:
    """A connection to what listens there. UnsupportedError if it runs as another user; OSError if there is nothing."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(max(0.001, deadline - time.monotonic()))
        end.connect(address)
        _check_listener(end)
    except BaseException as error:
        end.close()
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            raise ConnectionError("no process listens under this job's name") from None
        raise
    return end


@contextmanager
def _listening(address: bytes, end: float) -> Iterator[socket.socket]:
    """A socket that listens at an address: an abstract name, or the path of a file, which disappears with it."""
    abstract = address.startswith(b"\0")
    # A killed process leaves its file behind. So this socket listens at a new file, which then replaces the old one.
    own = address if abstract else address + b"." + secrets.token_hex(4).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        while not _bound(listener, own):
            _has_listener(own)  # raises if it is another user's
            _wait_until_free(end)
        try:
            listener.listen(socket.SOMAXCONN)
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


def _check_listener(connection: socket.socket) -> None:
    """Raise UnsupportedError if the process that listens at the other end runs as another user."""
    if (uid := user_of(connection)) != os.geteuid():
        raise UnsupportedError(
            "init",
            "shm",
            f"a process of user {uid} already listens at the name of this job's socket",
            "start the ranks with `rankwise run`, whose ranks need no socket, or set RANKWISE_SECRET to a new random "
            "text, the same on all ranks, on which the name then depends",
        )


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
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
