"""The native engine: shared-memory segments and the communicators in them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

class Request:
    """A send or receive under way."""

    @property
    def source(self) -> int:
        """Of a complete receive: the rank that sent the message."""

    @property
    def tag(self) -> int:
        """Of a complete receive: the message's tag."""

    def wait(self, timeout: float | None = None) -> None: ...
    def done(self) -> bool: ...

class Task:
    """A piece of work on a stream."""

    def wait(self, timeout: float | None = None) -> None:
        """Until it has run; None: as long as that takes. A collective ends at its communicator's limit."""

    def done(self) -> bool: ...

class Stream:
    """An ordered queue of the program's own work, run by a thread."""

    @staticmethod
    def create() -> Stream: ...
    @property
    def handle(self) -> int: ...
    def submit(self, function: Callable[[], None]) -> Task:
        """Run the function in its turn. It must not raise."""

    def idle(self) -> bool: ...
    def sync(self, timeout: float | None = None) -> None: ...
    def close(self, timeout: float) -> tuple[bool, bool]:
        """Idempotent; never raises. Whether all had run within `timeout` seconds, and whether the thread has ended."""

class HostEvents:
    """Events of this process and its streams, by number; the stream 0 is the calling thread itself.

    ValueError for a number that is none.
    """

    @staticmethod
    def create() -> int: ...
    @staticmethod
    def destroy(event: int) -> None: ...
    @staticmethod
    def record(event: int, stream: int) -> None: ...
    @staticmethod
    def wait(stream: int, event: int) -> None: ...
    @staticmethod
    def reached(event: int) -> bool: ...
    @staticmethod
    def synchronize(event: int, timeout: float | None = None) -> None: ...

class Comm:
    """One rank's end of one group in a segment. dtype and op are the contract's numbers."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def segment(self) -> Segment: ...
    timeout: float
    def allocate(self, bytes: int) -> Registered:
        """Zeroed memory of the segment, on which collectives work in place. MemoryError names needed and available."""

    def holds(self, ptr: int, bytes: int) -> bool:
        """Whether these bytes lie in the segment."""

    def barrier(self) -> None: ...
    def all_reduce(self, ptr: int, count: int, dtype: int, op: int) -> None: ...
    def broadcast(self, ptr: int, count: int, dtype: int, root: int) -> None: ...
    def reduce(self, ptr: int, count: int, dtype: int, op: int, root: int) -> None: ...
    def all_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: int) -> None: ...
    def gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, root: int) -> None: ...
    def scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, root: int) -> None: ...
    def reduce_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, op: int) -> None: ...
    def all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: int) -> None: ...
    def all_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int) -> None: ...
    def gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, root: int) -> None: ...
    def scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, root: int) -> None: ...
    def reduce_scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, op: int) -> None: ...
    def all_to_all_v(
        self, send_ptr: int, recv_ptr: int, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: int
    ) -> None: ...
    # The same on the communicator's stream: in the order started, before any later blocking call.
    def start_barrier(self) -> Task: ...
    def start_all_reduce(self, ptr: int, count: int, dtype: int, op: int) -> Task: ...
    def start_broadcast(self, ptr: int, count: int, dtype: int, root: int) -> Task: ...
    def start_reduce(self, ptr: int, count: int, dtype: int, op: int, root: int) -> Task: ...
    def start_all_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: int) -> Task: ...
    def start_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, root: int) -> Task: ...
    def start_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, root: int) -> Task: ...
    def start_reduce_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, op: int) -> Task: ...
    def start_all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: int) -> Task: ...
    def start_all_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int) -> Task: ...
    def start_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, root: int) -> Task: ...
    def start_scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, root: int) -> Task: ...
    def start_reduce_scatter_v(
        self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, op: int
    ) -> Task: ...
    def start_all_to_all_v(
        self, send_ptr: int, recv_ptr: int, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: int
    ) -> Task: ...
    def start_call(self, function: Callable[[], None]) -> Task:
        """Run a Python function on the stream, in its turn; its own calls of this communicator run at once.

        It must not raise.
        """

    def announce_end(self) -> None: ...
    def describe(self, shape: Sequence[int], operation: str) -> None: ...
    def hold(self) -> None:
        """Until `release` this thread has the communicator for itself: other threads' calls and started ones wait."""

    def release(self) -> None: ...

    # As rankwise.contract.shortcuts says.
    def all_reduce_array(self, x: object, op: object) -> bool: ...
    def reduce_array(self, x: object, dst: object, op: object) -> bool: ...
    def broadcast_array(self, x: object, src: object) -> bool: ...
    def all_gather_array(self, x: object, out: object) -> bool: ...
    def gather_array(self, x: object, dst: object, out: object) -> bool: ...
    def scatter_array(
        self, x: object, src: object, out: object, rest: Callable[[list[int], bytes | None, object, object], object]
    ) -> bool: ...
    def announce_array(self, header: object, send: int, recv: int, src: int) -> bytes | None: ...
    def reduce_scatter_array(self, x: object, op: object, out: object) -> bool: ...
    def send_array(self, x: object, dst: object, tag: object) -> bool: ...
    def recv_array(self, x: object, src: object, tag: object) -> bool: ...
    def all_to_all_array(self, x: object, out: object) -> bool: ...
    def send(self, ptr: int, count: int, dtype: int, dest: int, tag: int) -> Request: ...
    def recv(self, ptr: int, count: int, dtype: int, src: int, tag: int) -> Request:
        """src and tag may be -1: whichever message comes first."""

    def probe(self, src: int, tag: int) -> tuple[int, int, int, int] | None:
        """(source, tag, elements, dtype) of the message that such a receive would match, where one is there."""
    def sync(self) -> None: ...
    # Events on the stream, as rankwise.contract.stream_sync says.
    def record_event(self, event: int) -> None: ...
    def wait_event(self, event: int) -> None: ...
    def sync_stream(self) -> None: ...
    def split(self, color: int, key: int) -> Comm | None: ...
    def make_part(self, ranks: Sequence[int]) -> int: ...
    def take_part(self, part: int) -> Comm: ...
    def algorithms(self, operation: str, bytes: int) -> list[str]:
        """What a call of this operation tries, in this order, where a rank's array has so many bytes.

        bytes: of the array that a rank gives (scatter: that root gives), as rankwise bench counts them. Empty where the
        forced algorithm cannot run at this size.
        ValueError for an operation that has no algorithms to choose from.
        """

    def abort(self, why: str) -> None:
        """Fail the group: every rank's present or next operation raises PeerLostError naming this rank and `why`."""

    def close(self, timeout: float) -> str | None:
        """Idempotent; never raises. What went wrong, in words, or None."""

class Registered:
    """Memory of this rank in the segment; freed with this object."""

    @property
    def __array_interface__(self) -> dict[str, object]: ...

class Segment:
    """The shared memory of the ranks of one host."""

    @staticmethod
    def create(world_size: int) -> Segment:
        """A new segment (memfd) for `world_size` ranks. MemoryError names needed and available."""

    @staticmethod
    def attach(fd: int) -> Segment:
        """Map the segment behind an inherited or received descriptor (the descriptor is duplicated)."""

    @property
    def fd(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def join(
        self,
        rank: int,
        timeout: float,
        process: bool,
        algorithms: Sequence[tuple[str, str]] = (),
        oversubscribed: bool | None = None,
        single_copy: bool = True,
        backend: str = "shm",
    ) -> Comm:
        """Take part as `rank` and return, once all ranks have joined, the world's communicator.

        process: this rank is a process of its own, so the others watch it through a pidfd;
        False for a rank that is a thread. algorithms: (operation, algorithm), forced in this group and those
        split off it; oversubscribed: instead of what the cores say; single_copy: False where ranks leave each
        other's private memory alone; backend: its name in errors. ValueError for names that do not exist, and on
        every rank where the ranks' algorithms differ.
        """

    def announce_statuses(self) -> None: ...
    def mark_exited(self, rank: int, status: int, pid: int) -> None:
        """Record how a rank's process ended: exit status, or minus the signal (subprocess's returncode).

        A rank that ended without having closed its communicators fails every group it is in.
        """

    @property
    def allocated_blocks(self) -> int:
        """How many blocks of the heap are in use: groups, channels, buffers."""

    def state(self, rank: int) -> tuple[str, int, str, int, bool]:
        """Where a rank is: its present or last operation, its sequence number, both in words, pid, whether inside it.

        The operation is "none", and in words "", before the first. In words: "all_reduce #3", "recv from rank 1".
        """

    def lost_rank(self) -> int | None:
        """The rank whose loss failed the group of all ranks; None while it stands, or failed otherwise."""

class Operation:
    """One operation of a rank, as its trace says it. Times in ns; begin and end since the epoch."""

    @property
    def number(self) -> int:
        """Its place among all operations of the rank, which count from 0; some numbers are never given."""

    @property
    def name(self) -> str:
        """That of the communicator's method (its blocking and its started form alike), or "init"."""

    @property
    def group(self) -> int:
        """The group's number in the segment: 0 is that of all ranks, the others follow as they are made."""

    @property
    def sequence(self) -> int:
        """Its number in its group, from 1 on, the same on all ranks of the group; 0 for messages."""

    @property
    def dtype(self) -> str | None: ...
    @property
    def op(self) -> str | None: ...
    @property
    def root(self) -> int | None: ...
    @property
    def peer(self) -> int | None:
        """Of a message: the other rank, in the group; -1: any, so far."""

    @property
    def tag(self) -> int | None:
        """Of a message; -1: any, so far."""

    @property
    def bytes(self) -> int:
        """Of this rank's array: its own block where blocks are gathered, its part where one is scattered."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int | None:
        """None while it is under way.

        Of a collective below 4 KiB for which the rank did not have to wait for long: the same as
        begin. Such a one takes less than about a microsecond, and its end is not measured.
        """

    @property
    def waited(self) -> int:
        """Time in which it waited for other ranks, apart from waits of less than about a microsecond."""

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""

    @property
    def background(self) -> bool:
        """A message for which nobody has waited, or not for long."""

class RankState:
    """What a segment says of one rank at one moment."""

    @property
    def pid(self) -> int:
        """0 before it joins."""

    @property
    def joined(self) -> bool: ...
    @property
    def exited(self) -> bool:
        """Its process has ended, as far as another rank or the launcher has noticed."""

    @property
    def exit_status(self) -> int | None:
        """As subprocess's returncode; None while it runs and where it is not known."""

    @property
    def operations(self) -> int:
        """How many it has begun."""

    @property
    def bytes(self) -> int:
        """Moved by its operations, counted as Operation.bytes; up to 4 KiB a group are told late."""

    @property
    def waited(self) -> int:
        """ns that it has waited for other ranks, as Operation.waited; told at least five times a second."""

    @property
    def operation(self) -> Operation | None:
        """The one that it is in, where `inside` is true, else the last that ended; None before the first."""

    @property
    def inside(self) -> bool: ...
    @property
    def since(self) -> int:
        """ns since the operation began, or, outside of any, since the last one ended."""

    @property
    def words(self) -> str:
        """ "in all_reduce #3 for 4.2 s", "outside any collective for 1.0 s, last was barrier #2"."""

class SegmentView:
    """A job's segment as seen from outside its ranks: mapped for reading alone, the ranks undisturbed.

    fd: a descriptor of the memfd, open for reading; it is not needed afterwards. ValueError where it
    is no segment of this version of rankwise. All is read from memory that the ranks change at any
    time; each Operation is of one piece all the same.
    """

    def __init__(self, fd: int) -> None: ...
    @property
    def world_size(self) -> int: ...
    @property
    def started(self) -> int:
        """When the segment was made, ns since the epoch."""

    def state(self, rank: int) -> RankState: ...
    def operations(self, rank: int) -> list[Operation]:
        """The last of the rank's operations, about a thousand, in the order they began.

        One that is still under way is kept, however old it is.
        """

def algorithms() -> dict[str, list[str]]:
    """The algorithms of each operation that has several, by name."""

def memory_handler(comm: Comm) -> object:
    """A NumPy memory handler (NEP 49) whose arrays lie in the communicator's segment."""

def use_handler(handler: object | None) -> object:
    """Let NumPy, in this context, make arrays with that handler; None: its own. Returns the one used before."""

def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by its cgroup's quota."""

def end_with(pid: int) -> None:
    """End this process (SIGTERM, then SIGKILL) when the process `pid` ends."""

def adopt_orphans(on: bool) -> None:
    """Whether this process becomes the parent of what its descendants leave behind (a "subreaper")."""

def kernel_isa() -> str:
    """The instruction set of the reduction kernels on this machine."""

def reduce_local(dst: int, sources: Sequence[int], count: int, dtype: int, op: int, divisor: int) -> None:
    """dst = sources[0] op sources[1] op ..., elementwise, by the engine's own kernels."""

def convert_local(dst: int, src: int, count: int, dtype: int, widen: bool) -> None:
    """widen: dst (float32) = src of a narrow dtype (f16, bf16, fp8); else dst of that = src (float32), rounded."""

def describe(array: object, /) -> tuple[int, int, int, tuple[int, ...], bool, bool] | None:
    """(address, elements, dtype, shape, C-contiguous, writable) of a NumPy array, or None for anything else."""

class Turn:
    """The turns of a communicator in Python: one call at a time. Its `with` is a turn for what is no call."""

    refuses: bool
    """Whether `run` raises what refused(comm) returns, in place of the call."""

    def __init__(
        self,
        other: Turn | None = None,
        refused: Callable[[Any], BaseException] | None = None,
        failing: Callable[[Any, BaseException], None] | None = None,
    ) -> None:
        """other: turns of another communicator, where the two take one at a time.

        refused(comm) and failing(comm, error) are functions of the communicator, which this object must not keep
        alive; `run` needs both.
        """

    def run(self, comm: object, call: tuple[Any, ...], move: Callable[..., T], args: tuple[Any, ...]) -> T:
        """move(*args), in its turn. Where move raises, failing(comm, error) is called, still in this turn, and may
        raise another error.

        call: what it is, for others to see.
        """

    def acquire(self, timeout: float) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, value: object, trace: object) -> None: ...
    @property
    def call(self) -> tuple[Any, ...]:
        """The present or last call."""

    @property
    def inside(self) -> bool:
        """Whether a call is under way."""

    @property
    def sequence(self) -> int:
        """How many there were."""

class PlainArrays:
    """The methods of rankwise.contract.shortcuts over a communicator in Python that completes what it is told."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        methods: Sequence[Callable[..., object]],
        dtypes: Sequence[object],
        ops: Sequence[object],
    ) -> None:
        """methods: the communicator's all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter,
        all_to_all, send, recv and describe, complete when they return. dtypes, ops: the contract's, by their numbers.
        """
