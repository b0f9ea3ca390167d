"""The native engine: shared-memory segments and the communicators in them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import rankwise.contract.work as contract
from rankwise.contract.message import Arrival
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.shortcuts import Shortcuts

T = TypeVar("T")

version: str
"""The release of rankwise that this process has loaded; another one may have been installed since."""

class Request(Arrival):
    """A send or receive. Until it is complete, source and tag are None."""

    goes_on_when_dropped: bool
    """Whether it goes on, with its memory kept alive, if Python loses it; if not, the message is cancelled then."""

    @property
    def waited(self) -> bool:
        """Whether `wait` has raised the error of a message that does not fit its receive."""

    source: int
    tag: int
    @property
    def message(self) -> tuple[int, int, int]:
        """(source, tag, bytes) of a complete receive, else (-1, -1, 0)."""

    dtype: int
    cancelled: bool
    given: object
    """Of a complete irecv_array_up_to whose message is not in its array, but in `memory`: the array; else None."""

    is_object: bool
    """Of a complete receive: whether the message is an object."""

    def memory(self) -> ReceivedBytes: ...
    def return_message(self) -> None: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def done(self) -> bool: ...

class ReceivedBytes:
    """A received message: writable bytes, by the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

class Work(contract.Work[Any]):
    """An operation on a stream. `wait` without a limit: a collective ends at its communicator's timeout."""

    @property
    def waited(self) -> bool:
        """Whether no error is left that `wait` has not raised."""

    group: object
    """It is not closed as long as somebody has this Work, unless this is complete."""

    message: tuple[int, int, int]
    """As of a Request that is not complete: (-1, -1, 0)."""

    cancelled: bool
    given: None
    def wait(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...

class HostStream:
    """An ordered queue of the program's own work, run by a thread."""

    @staticmethod
    def create() -> HostStream: ...
    @property
    def handle(self) -> int: ...
    def submit(self, function: Callable[[], Any]) -> Work:
        """Run the function after the work queued before it. The Work has its result, or its error."""

    def failed(self) -> list[Work]:
        """The first hundred that have failed and whose error no `wait` has raised, each once."""

    def idle(self) -> bool: ...
    def sync(self, timeout: float | None = None) -> None: ...
    def close(self, timeout: float) -> tuple[bool, bool, list[Work]]:
        """Idempotent; never raises. Whether all work ran within `timeout` seconds, whether the thread has ended, and
        what `failed` returns.
        """

class HostEvents:
    """Events of this process and its streams, by number; stream 0 is the calling thread. ValueError for others."""

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

class Description:
    """What the ranks compare besides a collective's arguments. operation: of which it is a part; scan, exscan or ""."""

    def __init__(self, shape: Sequence[int], operation: str) -> None: ...

class Handle:
    """What the C API has for a communicator; it keeps the communicator alive."""

    @property
    def address(self) -> int: ...

class Comm(Shortcuts):
    """One rank's communicator in one group of a segment. dtype and op are the contract's numbers."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def segment(self) -> Segment: ...
    timeout: float
    def allocate(self, bytes: int, zeroed: bool = True) -> Registered:
        """Memory of the segment, on which collectives work in place. MemoryError has the sizes."""

    def shared_block(self, bytes: int, ticket: tuple[int, int] | None = None, filled: bool = False) -> SharedBlock: ...
    def in_segment(self, ptr: int, bytes: int) -> bool:
        """Whether these bytes are in the segment."""

    def barrier(self) -> None: ...
    def all_reduce(self, ptr: int, count: int, dtype: int, op: int) -> None: ...
    def broadcast(self, ptr: int, count: int, dtype: int, root: int) -> None: ...
    def reduce(self, ptr: int, count: int, dtype: int, op: int, root: int) -> None: ...
    def all_gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: int) -> None: ...
    def gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, root: int) -> None: ...
    def scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, root: int) -> None: ...
    def reduce_scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, op: int) -> None: ...
    def scan(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, op: int) -> None: ...
    def exscan(self, send_ptr: int, recv_ptr: int, count: int, dtype: int, op: int) -> None: ...
    def all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: int) -> None: ...
    def all_gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int) -> None: ...
    def gather_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, root: int) -> None: ...
    def scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, root: int) -> None: ...
    def reduce_scatter_v(self, send_ptr: int, recv_ptr: int, counts: Sequence[int], dtype: int, op: int) -> None: ...
    def all_to_all_v(
        self, send_ptr: int, recv_ptr: int, send_counts: Sequence[int], recv_counts: Sequence[int], dtype: int
    ) -> None: ...
    # All but the barriers also take a Description. start_<name> takes the same arguments, `description` and `keep`, and
    # returns a Work of the communicator's stream, where operations run in order, before any later blocking call.
    def start_call(self, function: Callable[[], Any], at_once: bool) -> Work:
        """Run a Python function on the stream; the Work has its result. Its own calls of this communicator run at once.

        at_once: in a thread of the stream; else whoever waits for it may run it.
        """

    def set_counted(self, now: bool) -> None:
        """Whether its operations add to `totals`, as they do by default."""

    def announce_end(self) -> None: ...
    def expose(self) -> Handle: ...
    def call(self, function: Callable[[], T]) -> T:
        """Call a function. Until it returns, only this thread uses the communicator: other threads' calls and started
        ones wait.
        """

    def send(self, ptr: int, count: int, dtype: int, dest: int, tag: int, keep: object = None) -> Request: ...
    def recv(self, ptr: int, count: int, dtype: int, src: int, tag: int, keep: object = None) -> Request:
        """src and tag may be -1: the first message that arrives."""

    def probe(self, src: int, tag: int, timeout: float = 0.0) -> tuple[int, int, int, int] | None:
        """(source, tag, elements, dtype) of the message that such a receive would match; None if none comes in time."""

    def recv_probed(self, ptr: int, count: int, dtype: int, src: int, tag: int, keep: object = None) -> Request | None:
        """Receive the message that `probe` found; None if another receive has matched it meanwhile."""

    def send_object(self, parts: list[Any], dest: int, tag: int, synchronous: bool = False) -> Request:
        """Send the bytes of the parts, which have the buffer protocol, as one message."""

    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None: ...
    def recv_message(self, src: int, tag: int) -> Request:
        """Receive any message, of any length."""

    def recv_arrived(self, src: int, tag: int) -> tuple[Request, tuple[int, int, int]] | None:
        """The same for a message that has arrived, and its source, tag and bytes; None if there is none."""

    def recv_object(self, src: int, tag: int) -> Request:
        """Receive an object, or an array of any length, of this dtype, or of any if it is -1."""

    def sync(self) -> None: ...
    # Events on the stream: see rankwise.contract.stream_sync.
    def record_event(self, event: int) -> None: ...
    def wait_event(self, event: int) -> None: ...
    def sync_stream(self) -> None: ...
    def split(self, color: int, key: int) -> Comm | None: ...
    def make_subgroup(self, ranks: Sequence[int]) -> int: ...
    def join_subgroup(self, subgroup: int) -> Comm: ...
    def algorithms(self, operation: str, bytes: int) -> list[str]:
        """The algorithms that a call of this operation tries, in order, if a rank's array has `bytes` bytes.

        bytes: of the array that a rank (for scatter: root) passes, as rankwise bench counts them. The list is empty if
        the forced algorithm cannot run at this size. ValueError for an operation that has only one algorithm.
        """

    @property
    def thresholds(self) -> tuple[str, dict[str, int]]:
        """How the ranks share the cores of their host, and the thresholds in bytes by which this group chooses."""

    # See rankwise.contract.communicator.
    def failed(self) -> dict[int, str]: ...
    def agree(self, flag: int) -> int: ...
    def shrink(self, exclude: Sequence[int]) -> Comm: ...
    def restore(self) -> Comm: ...
    def name_group(self, name: str) -> None: ...  # the first 56 characters are shown; the first name stays
    def numbers_in(self, former: Comm) -> list[int]: ...  # of this group's ranks in the group of `former`
    def abort(self, why: str) -> None:
        """Fail the group: every rank's present or next operation raises PeerLostError naming this rank and `why`."""

    def close(self, timeout: float) -> str | None:
        """Idempotent; never raises. Returns a description of what went wrong, or None."""

class Registered:
    """Memory of this rank in the segment; freed with this object."""

    @property
    def __array_interface__(self) -> dict[str, object]: ...

class SharedBlock:
    """Memory in the segment that several ranks hold, each with such an object; freed with the last of them."""

    ticket: tuple[int, int]
    offset: int
    @property
    def __array_interface__(self) -> dict[str, object]: ...

class FileCopy:
    """This process's own writable copy of a file, which need not stay open; pages are copied as they are written."""

    def __init__(self, fd: int, bytes: int) -> None: ...
    @property
    def __array_interface__(self) -> dict[str, object]: ...

class Segment:
    """The shared memory of the ranks of one host."""

    @staticmethod
    def create(world_size: int, node: int = 0, nodes: int = 1) -> Segment:
        """A new segment (memfd) for `world_size` ranks. MemoryError says what is needed and available.

        node, nodes: if they are the ranks of one of several nodes of a job. Then the groups' numbers in the trace
        differ from the numbers on the other nodes, and 0 means the group of all ranks of the job.
        """

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
        restart: int = 0,
        part: bool = False,
        tuning: Sequence[tuple[str, str, int]] = (),
        unexpected_bytes: int = 64 << 20,
    ) -> Comm:
        """Join as rank `rank`; returns the world's communicator once all ranks have joined.

        process: whether this rank is a process, which the others watch through a pidfd, and not a thread.
        algorithms: pairs (operation, algorithm), forced in this group and those split off it. oversubscribed:
        overrides what follows from the number of cores. single_copy: False if ranks must not access each
        other's private memory. backend: its name in errors. restart: how many processes were started for this
        rank before; if there were any, it joins the survivors, which call `restore`. part: its operations are parts
        of another communicator's operations, which that one writes into the trace. tuning: thresholds that replace the
        defaults: (cores, threshold, bytes), with the names of `thresholds()`. unexpected_bytes: limit on
        the unexpected messages that this rank keeps; the data of further ones stays with their senders. ValueError for
        names that do not exist, and, on every rank, if the ranks' algorithms or thresholds differ.
        """

    def announce_statuses(self) -> None:
        """The launcher calls `mark_ended` for each rank that ends."""

    def announce_restarts(self) -> None:
        """The launcher starts a replacement for each lost rank, or calls `give_up`."""

    def add_pidfd(self, rank: int, pidfd: int) -> None:
        """Watch this rank by a descriptor of its process (which is duplicated), because its pid is not valid here.

        Called before `join`, for a rank in another PID namespace that no launcher watches.
        """

    def give_up(self, rank: int) -> None:
        """No further process of this rank will be started: what waits for a replacement raises PeerLostError.

        Called after `mark_ended` for the rank's last process.
        """

    def mark_ended(self, rank: int, status: int, pid: int, restart: int = 0) -> None:
        """Record how a rank's process ended: exit status, or minus the signal (subprocess's returncode).

        restart: how many processes had been started for this rank before that one (RANKWISE_RESTART).
        A rank that ended without having closed its communicators fails every group it is in.
        """

    @property
    def allocated_blocks(self) -> int:
        """How many blocks of the heap are in use: groups, channels, buffers."""

    def state(self, rank: int) -> tuple[str, int, str, int, bool]:
        """(operation, sequence number, text, pid, inside) of the rank's present or last operation; inside: present.

        text: for example "all_reduce #3" or "recv from rank 1". Before the first operation it is "", and operation is
        "none".
        """

    def lost_rank(self) -> int | None:
        """The rank whose loss failed the group of all ranks; None if it has not failed, or for another reason."""

class Operation:
    """One operation in a rank's trace. Times are in ns; begin and end since the epoch."""

    @property
    def number(self) -> int:
        """Its position among all operations of the rank, from 0; some numbers are not used."""

    @property
    def name(self) -> str:
        """The name of the communicator's method (the same for the blocking and the started form), or "init"."""

    @property
    def group(self) -> int:
        """The group's number, which no other group of the job has: 0 for the group of all ranks."""

    @property
    def group_name(self) -> str: ...  # as shown behind the word group: in quotes; its number if it has no name
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
        """For a message: the other rank's number in the group; -1: any, and not matched yet."""

    @property
    def tag(self) -> int | None:
        """For a message; -1: any, and not matched yet."""

    @property
    def bytes(self) -> int:
        """The size of this rank's array: its own block if blocks are gathered, its part if an array is scattered."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int | None:
        """None if it has not ended.

        The end of a collective below 4 KiB in which the rank hardly waited is not measured: it takes less
        than about a microsecond, and its end equals its begin.
        """

    @property
    def waited(self) -> int:
        """The time for which it waited for other ranks, without waits of less than about a microsecond."""

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""

    @property
    def background(self) -> bool:
        """Whether it is a message for which the program has not waited, or only shortly."""

    @property
    def part(self) -> bool:
        """Whether it is a part of another operation: what its ranks of one host do in shared memory."""

class RankState:
    """The state of one rank in the segment at one moment."""

    @property
    def pid(self) -> int:
        """The pid in its own PID namespace; 0 before it joins."""

    @property
    def pid_namespace(self) -> int:
        """The inode of that namespace, which differs between containers; 0 before it joins."""

    @property
    def joined(self) -> bool: ...
    @property
    def ended(self) -> bool: ...  # whether its process has ended, as far as a rank or the launcher has detected it
    @property
    def exit_status(self) -> int | None:
        """Like subprocess's returncode; None while the process runs, and if it is not known."""

    @property
    def operations(self) -> int: ...  # the number of those that it has begun
    @property
    def bytes(self) -> int:
        """The bytes that its operations moved, counted as in Operation.bytes; up to 4 KiB per group appear late."""

    @property
    def waited(self) -> int:
        """ns that it has waited for other ranks, as in Operation.waited; updated at least five times a second."""

    @property
    def operation(self) -> Operation | None:
        """The operation that it is in, if `inside` is true, else the last one; None before the first."""

    @property
    def inside(self) -> bool: ...
    @property
    def since(self) -> int:
        """ns since the operation began, or, if `inside` is false, since it ended."""

    @property
    def description(self) -> str:
        """ "in all_reduce #3 for 4.2 s", "outside any collective for 1.0 s, last was barrier #2"."""

class SegmentView:
    """A job's segment seen from outside its ranks: mapped read-only, without disturbing the ranks.

    fd: a descriptor of the memfd, open for reading; it is not needed afterwards. ValueError if it is not a segment of
    this version of rankwise. The ranks may change the memory at any time, but each Operation is consistent.
    """

    def __init__(self, fd: int) -> None: ...
    @property
    def world_size(self) -> int: ...
    @property
    def started(self) -> int:
        """When the segment was created, in ns since the epoch."""

    def state(self, rank: int) -> RankState: ...
    def operations(self, rank: int) -> list[Operation]:
        """The rank's last operations, about a thousand, in the order in which they began; all that have not ended."""

def request_stacks(segment_fd: int) -> dict[int, str]:
    """The Python stacks of the ranks of a segment that answer within a second, or why a rank has none.

    The ranks write them into the segment, so the descriptor must be open for writing.
    """

def begin_measurement() -> None:
    """From now on, until end_measurement, operations add to the totals. Several measurements may overlap."""

def end_measurement() -> None: ...
def seconds_per_tick() -> float:
    """The length of a tick of the processor's counter."""

def totals() -> list[tuple[str, int, int, int, int]]:
    """For each operation of this process: name, count, ticks from begin to end, ticks waited, bytes.

    Only the difference between two results within a measurement means anything.
    """

def counted(operation: str, operations: int, bytes: int, function: Callable[..., T], *args: object) -> T:
    """function(*args), which adds that many operations, bytes and the time that it takes to the totals of `operation`.

    What it calls in this thread is a part of it and is not counted. ValueError for an operation that is not in the
    contract.
    """

def uncounted(function: Callable[..., T], *args: object) -> T:
    """function(*args), which is a part of another operation."""

class TraceWriter:
    """Writes the trace of a rank whose operations another library does, for SegmentView to read.

    segment_fd: a descriptor of the job's segment, which is duplicated. The process is noted as the rank's. Any thread
    may use it; in a forked child it writes nothing.
    """

    def __init__(self, segment_fd: int, rank: int) -> None: ...
    def begin(
        self,
        operation: str,
        group: int,
        sequence: int,
        bytes: int,
        dtype: int = 0,
        op: int = 0,
        peer: int = 0,
        tag: int = 0,
        background: bool = False,
    ) -> WrittenOperation:
        """An operation begins; the arguments are those of Operation. peer: of a message, or the root of a collective.

        background: nobody waits for it yet. ValueError for an operation that is not in the contract.
        """

    def new_group(self) -> int: ...  # a number that no other group of the job has
    def name_group(self, number: int, name: str) -> None: ...

class WrittenOperation:
    """An operation in progress, in the trace of a TraceWriter. It ends with this object at the latest."""

    def wait(self) -> None:
        """From now on somebody waits for it."""

    def matched(self, peer: int, tag: int) -> None:
        """A receive from any rank, or with any tag, has taken this message."""

    def end(self, failed: bool = False) -> None:
        """It is over. All the time in which somebody waited for it counts as waiting for other ranks."""

def algorithms() -> dict[str, list[str]]:
    """{operation: its algorithms}, for the operations that have several."""

def thresholds() -> dict[str, dict[str, int]]:
    """The default thresholds of the tuning table in bytes: {how ranks share cores: {threshold: bytes}}."""

def memory_handler(comm: Comm) -> object:
    """A NumPy memory handler (NEP 49) that allocates arrays in the communicator's segment."""

def use_handler(handler: object | None) -> object:
    """Make NumPy allocate arrays with this handler in this context; None: with its own. Returns the previous one."""

def available_memory() -> int:
    """Bytes that can still be allocated before the machine or this process's cgroup runs out of memory."""

def usable_cores() -> int: ...
def end_with(pid: int) -> None: ...
def read_debugged_from(fd: int) -> None: ...
def adopt_orphans(on: bool) -> None: ...
def reduce_local(dst: int, sources: Sequence[int], count: int, dtype: int, op: int, divisor: int) -> None: ...
def copy_blocks(dst: Sequence[int], src: Sequence[int], bytes: Sequence[int]) -> None:
    """Copy blocks of memory: bytes[i] bytes from src[i] to dst[i]."""

def widen_local(dst: int, src: int, count: int, dtype: int) -> None:
    """Convert src, of a narrow `dtype` (f16, bf16, fp8), to float32 in dst."""

def narrow_local(dst: int, src: int, count: int, dtype: int) -> None:
    """Convert src, float32, to a narrow `dtype` in dst, rounded."""

def describe(array: object, /) -> tuple[int, int, int, tuple[int, ...], bool, bool] | None:
    """(address, elements, dtype, shape, C-contiguous, writable) of a NumPy array, or None for anything else."""

def address(array: object, /) -> int:
    """Where the first element of a NumPy array is. Twenty times as fast as array.ctypes.data."""

def is_basic(object: object, /) -> bool: ...
def load_allowed(stream: bytes, constructor: tuple[str, str] | None) -> Any:
    """The object of a pickle that makes only basic types (see check_plain), or of any, with None; or NOT_TAKEN."""

def check_plain(stream: bytes, buffers: int, constructor: tuple[str, str]) -> bool:
    """Whether plain data calls the constructor, (module, name). TypeError if it is not plain, ValueError if invalid."""

class Words:  # SharedIntegers, in memory that `memory` keeps mapped
    def __init__(self, memory: object, address: int, count: int) -> None: ...
    def add(self, index: int, n: int) -> int: ...
    def swap_if(self, index: int, before: int, after: int) -> bool: ...
    def sleep_while(self, index: int, value: int, seconds: float) -> None: ...
    def wake(self, index: int) -> None: ...

class LockProtocol:  # of a lock in two words: its holder's mark, or 0, and the number of sleepers
    def __init__(self, words: SharedIntegers, rank: int, world_size: int) -> None: ...
    def try_acquire(self, holder: int = 0) -> bool: ...
    def release(self) -> bool: ...

jax_call: object
"""The function that XLA calls, in a capsule."""
