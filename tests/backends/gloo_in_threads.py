"""The gloo backend with ranks as threads of this process: queues replace gloo's transport, and count latencies."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rankwise.backends.gloo.communicator import GlooCommunicator
from rankwise.backends.gloo.transport import STANDING_TAG, Transport
from rankwise.contract.errors import RankwiseError
from rankwise.contract.job import Job
from rankwise.contract.types import DType, ReduceOp

SECONDS = 30.0  # after which a message that has not arrived is missing


class Queues:
    """A queue for each (source, target, tag), made when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Any, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)

    def __getitem__(self, key: Any) -> queue.SimpleQueue[Any]:
        with self._lock:
            return self._queues[key]


class PartQueues:
    """The queues of a group that is split off. name: tells it from the others."""

    def __init__(self, whole: Any, members: Sequence[int], name: object) -> None:
        self._whole, self._members, self._name = whole, members, name

    def __getitem__(self, key: tuple[int, int, object]) -> queue.SimpleQueue[Any]:
        source, target, tag = key
        found: queue.SimpleQueue[Any] = self._whole[self._members[source], self._members[target], (self._name, tag)]
        return found


class QueueTransport:
    """What GlooCommunicator needs of `gloo.transport.Transport`. A message of another size than expected is an error,
    except that a standing receive may get a shorter one.

    latencies: how many messages in succession this rank's present state depends on. sent: the messages sent.
    """

    def __init__(self, queues: Any, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.timeout, self.patience = rank, world_size, SECONDS, SECONDS
        self.latencies = self.sent = self.sent_bytes = 0
        self._queues = queues  # [source, target, tag]
        self._expected: dict[tuple[int, int], list[Any]] = defaultdict(list)

    def send(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        self.sent += 1
        self.sent_bytes += size
        self._queues[self.rank, peer, tag].put((ctypes.string_at(ptr, size), self.latencies + 1))
        return None

    def recv(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        receive = (ptr, size, peer, tag)
        self._expected[peer, tag].append(receive)
        return receive

    def wait_all(self, pending: Iterable[Any]) -> None:
        for each in pending:
            self.wait(each)

    def wait(self, pending: Any, seconds: float | None = None) -> None:
        if pending is None:
            return
        ptr, size, peer, tag = pending
        assert self._expected[peer, tag].pop(0) is pending, "receives must be waited for in the order posted"
        message, latencies = self._queues[peer, self.rank, tag].get(timeout=SECONDS)
        shorter = tag == STANDING_TAG and len(message) < size
        assert len(message) == size or shorter, f"{len(message)} bytes from rank {peer}, expected {size}"
        ctypes.memmove(ptr, message, len(message))
        self.latencies = max(self.latencies, latencies)

    all_gather_v: Any = Transport.all_gather_v  # these are made of the methods above
    all_to_all_v: Any = Transport.all_to_all_v
    exchange: Any = Transport.exchange

    # gloo's own collectives, each of which exchanges messages with all ranks at once

    def all_gather(self, send: int, recv: int, size: int) -> None:
        blocks = [self.send(send, size, peer, 0) or self.recv(recv + peer * size, size, peer, 0) for peer in self._all]
        for pending in blocks:
            self.wait(pending)

    def broadcast(self, ptr: int, size: int, root: int) -> None:
        for peer in self._all if self.rank == root else ():
            self.send(ptr, size, peer, 0)
        self.wait(self.recv(ptr, size, root, 0))

    def barrier(self) -> None:
        byte = ctypes.create_string_buffer(self.world_size)
        self.all_gather(ctypes.addressof(byte), ctypes.addressof(byte), 1)

    def reduces(self, dtype: DType, op: ReduceOp) -> bool:
        return False

    @property
    def _all(self) -> range:
        return range(self.world_size)


class GlooInThreads(GlooCommunicator):
    """One rank's communicator."""

    def __init__(self, queues: Any, rank: int, world_size: int, timeout: float, *, checks: bool) -> None:
        self.queues, self.splits = queues, 0
        self._transport = QueueTransport(queues, rank, world_size)  # type: ignore[assignment]
        super(GlooCommunicator, self).__init__(rank, world_size, timeout, checks=checks)

    def _part(self, color: int, members: Sequence[int]) -> GlooInThreads:
        self.splits += 1
        queues = PartQueues(self.queues, members, (self.splits, color))
        part = GlooInThreads(queues, members.index(self._rank), len(members), self._timeout, checks=self.checks)
        part.force(self._forced)
        return part

    def _no_part(self) -> None:
        self.splits += 1

    def sync(self) -> None:
        self._drain()

    def _explain(self, error: Exception, where: str = "") -> RankwiseError:
        return RankwiseError(f"{self._last_call}: {error}")

    def _announce_failure(self, error: RankwiseError, *, known_to_all: bool) -> None:
        pass

    def _release(self, timeout: float, healthy: bool) -> None:
        pass


def opener(*, checks: bool = True, forced: dict[str, str] | None = None) -> Callable[[Job, float], GlooInThreads]:
    """A backend for threads."""
    jobs: dict[str, Queues] = defaultdict(Queues)
    lock = threading.Lock()

    def open_communicator(job: Job, timeout: float) -> GlooInThreads:
        with lock:
            queues = jobs[job.id]
        comm = GlooInThreads(queues, job.rank, job.world_size, timeout, checks=checks)
        comm.force(forced or {})
        return comm

    return open_communicator
