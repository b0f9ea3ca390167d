"""The native engine as a Communicator. The backends solo, threads and shm differ only in how they join a segment."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from rankwise import _native
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.composed.part_errors import REASON_BYTES, to_pass_on
from rankwise.contract.closing import CLOSE_TIMEOUT
from rankwise.contract.failure import Failure
from rankwise.contract.message import Arrival, IncomingMessage, Message, Receives
from rankwise.contract.operations import BARRIER, Call, Operation
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.stream_sync import StreamSyncOps
from rankwise.contract.types import DType
from rankwise.contract.work import Work
from rankwise.system import tuning_file
from rankwise.system.once import once
from rankwise.system.settings import Settings
from rankwise.system.shared_pages import write_pages

T = TypeVar("T")

Arrival.register(_native.Request)  # the engine's receives of messages of any length


class EngineReceives(Receives):
    """The receives of one of the engine's communicators."""

    def __init__(self, comm: _native.Comm) -> None:
        self._comm = comm

    def recv_object(self, src: int, tag: int) -> Arrival:
        return self._comm.recv_object(src, tag)

    def recv_message(self, src: int, tag: int) -> Arrival:
        return self._comm.recv_message(src, tag)

    def recv_arrived(self, src: int, tag: int) -> tuple[Arrival, tuple[int, int, int]] | None:
        return self._comm.recv_arrived(src, tag)

    def probe(self, src: int, tag: int, timeout: float) -> Message | None:
        message = self._comm.probe(src, tag, timeout)
        return None if message is None else Message(*message[:3], DType(message[3]))

    def send_object(self, parts: list[Any], dest: int, tag: int, synchronous: bool = False) -> Work[None]:
        return self._comm.send_object(parts, dest, tag, synchronous)

    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None:
        self._comm.send_object_now(parts, dest, tag)


class EngineStreamSync(StreamSyncOps):
    """The events of this process, between its host streams and the stream of one communicator."""

    create_event, destroy_event = staticmethod(_native.HostEvents.create), staticmethod(_native.HostEvents.destroy)
    record_on_stream, stream_wait_event = staticmethod(_native.HostEvents.record), staticmethod(_native.HostEvents.wait)

    def __init__(self, comm: _native.Comm) -> None:
        self._comm = comm

    def record_on_comm_stream(self, event: int) -> None:
        self._comm.record_event(event)

    def comm_stream_wait_event(self, event: int) -> None:
        self._comm.wait_event(event)

    def sync_comm_stream(self) -> None:
        self._comm.sync_stream()


class _Engine:
    """A method of the engine's, as one of an EngineCommunicator: called directly, once it has been looked up.

    For a named collective, the way through `run` would cost more than a small call.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, comm: EngineCommunicator, owner: type | None = None) -> Any:
        method = vars(comm)[self._name] = getattr(comm._comm, self._name)
        return method


def _engine(count: int) -> Any:
    return [_Engine() for _ in range(count)]


class EngineCommunicator(OpenCommunicator):
    """One rank's end of one group in a segment."""

    blocking = True
    any_source = True
    scans = True
    traced = True
    _forked = False

    agree, allocate, call, failed, make_subgroup = _engine(5)
    barrier, all_reduce, broadcast, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all = _engine(9)
    all_gather_v, gather_v, scatter_v, reduce_scatter_v, all_to_all_v = _engine(5)

    def __init__(self, comm: _native.Comm, backend: str) -> None:
        self.backend = backend
        self._comm = comm
        self.receives = self._receives = EngineReceives(comm)
        super().__init__(comm.rank, comm.world_size)

    @once
    def stream_sync(self) -> EngineStreamSync:  # type: ignore[override]
        return EngineStreamSync(self._comm)

    @property
    def shortcuts(self) -> Shortcuts:
        return self._comm  # has the same methods, in native code

    @property
    def handle(self) -> int:
        return self._exposed.address

    @once
    def _exposed(self) -> _native.Handle:
        return self._comm.expose()

    @property
    def timeout(self) -> float:
        return self._comm.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._comm.timeout = seconds

    def name_group(self, name: str) -> None:
        self._comm.name_group(name)

    def become_part(self) -> None:
        super().become_part()
        self._comm.set_counted(False)

    def run(self, call: Call) -> None:
        getattr(self._comm, _engine_name(call.operation))(*_arguments(call))

    def start(self, call: Call, keep: object = None, result: Any = None) -> Work[Any]:
        start: Callable[..., Work[Any]] = getattr(self._comm, f"start_{_engine_name(call.operation)}")
        return start(*_arguments(call), keep=keep, result=result)

    def start_call(self, function: Callable[[], T], *, at_once: bool = True) -> Work[T]:
        return self._comm.start_call(function, at_once)

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        return self._comm.send(ptr, count, dtype, dest, tag, keep)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        return self._comm.recv(ptr, count, dtype, src, tag, keep)

    def probe(self, src: int, tag: int) -> Message | None:
        return self._receives.probe(src, tag, 0.0)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        while (message := self.probe(src, tag)) is not None:
            memory = np.empty(message.count * message.dtype.itemsize, np.uint8)
            at = _native.address(memory)
            work = self._comm.recv_probed(at, message.count, message.dtype, message.source, message.tag, memory)
            if work is not None:  # no other receive has matched the message meanwhile
                return IncomingMessage(message.source, message.tag, message.dtype, memory, work)
        return None

    def left(self) -> Collection[int]:
        return self._comm.failed().keys()

    def sync(self) -> None:
        self._comm.sync()

    def split(self, color: int, key: int = 0) -> EngineCommunicator | None:
        part = self._comm.split(color, key)
        return None if part is None else self._part(part)

    def _part(self, part: _native.Comm) -> EngineCommunicator:
        made = EngineCommunicator(part, self.backend)
        made.former_ranks = tuple(part.numbers_in(self._comm))
        return made

    def join_subgroup(self, subgroup: int) -> EngineCommunicator:
        return EngineCommunicator(self._comm.join_subgroup(subgroup), self.backend)

    def host_memory(self, nbytes: int, ticket: Any = None, filled: bool = False) -> HostBlock:
        return HostBlock(self._comm.shared_block(nbytes, ticket, filled), nbytes, self._comm.segment.fd)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        before = _native.use_handler(_native.memory_handler(self._comm))
        try:
            yield
        finally:
            _native.use_handler(before)

    def shrink(self, exclude: Sequence[int] = ()) -> EngineCommunicator:
        return self._part(self._comm.shrink(exclude))

    def restore(self) -> EngineCommunicator:
        return EngineCommunicator(self._comm.restore(), self.backend)

    def fail(self, how: str) -> None:
        self._comm.abort(how)

    def fail_as_part(self, failure: Failure) -> None:
        self.fail(to_pass_on(failure, REASON_BYTES))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        if self.closed or self._forked:
            return
        self.closed = True
        trouble = self._comm.close(timeout)
        if trouble is not None:
            self._warn(trouble)

    def process_ends(self) -> None:
        self._comm.announce_end()

    def forked(self) -> None:
        """The group belongs to the parent only. The engine checks itself which process calls it."""
        self._forked = True


def _engine_name(operation: Operation) -> str:
    """The engine's method that runs an operation."""
    return "barrier_without_sync" if operation is BARRIER else operation.name


def _arguments(call: Call) -> tuple[object, ...]:
    """The engine's: the call's own, and what the ranks compare besides them."""
    if call.shape is None:
        return call.arguments
    return (*call.arguments, _native.Description(call.shape, call.part_of))


def join(
    segment: _native.Segment,
    rank: int,
    timeout: float,
    backend: str,
    process: bool,
    algorithms: Mapping[str, str] | None = None,
    restart: int = 0,
    part: bool = False,
    tuning: str | None = None,
) -> EngineCommunicator:
    """This rank's communicator of all ranks of the segment; returns once all have joined.

    process: whether the rank is a process, not a thread. algorithms: to force, by operation; None: as in
    RANKWISE_ALGORITHM. restart: as in Job; a replacement joins the survivors, which call restore. part: each operation
    is part of another communicator's operation, which that communicator records in the trace. tuning: as in Job.

    Raises ValueError for a tuning file that cannot be used.
    """
    settings = Settings.read()
    forced = settings.algorithms if algorithms is None else algorithms
    thresholds = _thresholds(tuning, settings.tuning) if segment.world_size > 1 else []
    comm = segment.join(
        rank,
        timeout,
        process=process,
        algorithms=[*forced.items()],
        oversubscribed=settings.oversubscribed,
        single_copy=settings.direct,
        backend=backend,
        restart=restart,
        part=part,
        tuning=thresholds,
        unexpected_bytes=settings.unexpected_bytes,
    )
    return EngineCommunicator(comm, backend)


def _thresholds(argument: str | None, variable: str | None) -> list[tuple[str, str, int]]:
    """The thresholds of the tuning file in force. argument, variable: the files that the program and RANKWISE_TUNING
    name.
    """
    if argument is None and variable is not None:
        path, given = tuning_file.in_force(variable), "environment variable RANKWISE_TUNING: tuning file"
    else:
        path, given = tuning_file.in_force(argument), "tuning file"
    return [] if path is None else tuning_file.load(path, _native.thresholds(), given).values()


# ---- memory that the ranks of a host share, in the segment, where collectives work on it in place ----


class HostBlock:
    """HostMemory in a block of the segment."""

    def __init__(self, block: _native.SharedBlock, size: int, fd: int) -> None:
        """fd: the segment's."""
        self._block, self._size, self._fd = block, size, fd

    @property
    def ticket(self) -> tuple[int, int]:
        return self._block.ticket

    def hand_out(self, ranks: int, deadline: float) -> None:
        """Nothing to do: every rank has mapped the segment."""

    def fill(self, content: Any) -> None:
        write_pages(self._fd, self._block.offset, content)

    def view(self, *, writable: bool, own_writes: bool = False) -> Any:
        if own_writes:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            copy = _OwnWrites(self._fd, self._size, mmap.MAP_PRIVATE, access, offset=self._block.offset)
            copy.block = self._block
            return copy
        view = np.asarray(self._block)
        if not writable:
            view.flags.writeable = False  # nobody can set it again, because the block offers no buffer
        return view

    def close(self) -> None:
        """Nothing to do: the block goes with this and its views."""


class _OwnWrites(mmap.mmap):
    """A private mapping of a block, which it keeps."""

    block: _native.SharedBlock
