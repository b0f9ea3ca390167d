"""The collectives as one table, and a call of one of them as a value.

The table is all there is to know about an operation: what it takes, on what its ranks must agree, and how much each
rank reads and writes. Checks, comparisons, errors and traces are made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from rankwise.contract.types import DTYPE_NAMES, ITEMSIZE, DType, ReduceOp

AGREED = ("count", "counts", "dtype", "op", "root")
"""The arguments that must be equal on every rank; addresses and each rank's own counts may differ."""

MOST_COUNTS = 16  # per-rank counts that are written out


class Call(NamedTuple):
    """One call of a collective: the operation and its arguments; those that it does not take keep their defaults.

    Attributes:
        send: the address that it reads, which equals `recv` if it works in place.
        recv: the address that it writes.
        send_counts: what this rank sends to each rank.
        recv_counts: what this rank receives from each rank.
    """

    operation: Operation
    send: int = 0
    recv: int = 0
    count: int = 0  # type: ignore[assignment]  # in place of tuple.count
    dtype: DType = DType.F64
    op: ReduceOp | None = None
    root: int | None = None
    counts: Sequence[int] | None = None
    send_counts: Sequence[int] | None = None
    recv_counts: Sequence[int] | None = None
    shape: tuple[int, ...] | None = None
    """The arrays', which the ranks compare too, if the count does not imply it."""
    part_of: str = ""
    """The operation that the program called, if it is another one: "scan" or "exscan"."""
    algorithm: str = ""
    """The algorithm that RANKWISE_ALGORITHM forces on the call; the ranks must force the same one."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the operation's method, in its order."""
        return self.operation.arguments(self)

    @property
    def agreed(self) -> tuple[Any, ...]:
        """What must be equal on every rank."""
        values = self.operation.agreement(self)
        if self.counts is not None:  # a list, perhaps
            values = tuple(tuple(value) if value is self.counts else value for value in values)
        return (self.operation.name, *values, self.shape, self.part_of, self.algorithm)

    @property
    def size(self) -> int:
        """`count` in bytes."""
        return self.count * ITEMSIZE[self.dtype]

    @property
    def sizes(self) -> tuple[int, ...]:
        """`counts` in bytes."""
        return in_bytes(self.counts, self.dtype)

    @property
    def send_sizes(self) -> tuple[int, ...]:
        """`send_counts` in bytes."""
        return in_bytes(self.send_counts, self.dtype)

    @property
    def recv_sizes(self) -> tuple[int, ...]:
        """`recv_counts` in bytes."""
        return in_bytes(self.recv_counts, self.dtype)

    def reads(self, rank: int, world_size: int) -> int:
        """How many elements this rank reads at `send`."""
        operation = self.operation
        return 0 if operation.rooted == "reads" and rank != self.root else operation.sends(self, rank, world_size)

    def writes(self, rank: int, world_size: int) -> int:
        """How many elements this rank writes at `recv`."""
        operation = self.operation
        return 0 if operation.rooted == "writes" and rank != self.root else operation.receives(self, rank, world_size)

    def own_bytes(self, rank: int, world_size: int) -> int:
        """The bytes by which traces and measurements count the call: this rank's block, or all that it sends."""
        operation = self.operation
        elements = operation.receives if operation.receives is one_block else operation.sends
        return elements(self, rank, world_size) * ITEMSIZE[self.dtype]

    def check(self, world_size: int) -> None:
        """Raise an error, which names the argument, if no group of this size can make the call.

        Raises:
            ValueError, TypeError: the call is impossible.
        """
        if self.root is not None:
            check_rank(self.root, world_size)
        check_count(self.count)
        if self.op is not None and (why := _REFUSED[self.dtype][self.op]) is not None:
            raise TypeError(f"op={self.op.name.lower()} of {DTYPE_NAMES[self.dtype]}: {why}")
        for name in self.operation.vectors:
            _check_counts(getattr(self, name), world_size, name)

    def vector(self, world_size: int) -> Call:
        """The same with a count for each rank, for a backend that has only the vector variant."""
        variant = _VECTORS.get(self.operation)
        if variant is None:
            return self
        even: dict[str, Any] = dict.fromkeys(variant.vectors, (self.count,) * world_size)
        return self._replace(operation=variant, count=0, **even)

    def __str__(self) -> str:
        """all_reduce(count=4, dtype=float32, op=sum), or exscan: reduce_scatter(count=4, ..., shape=(2, 2))"""
        return self.shown(self.operation.agrees)

    def shown(self, names: Sequence[str]) -> str:
        """The call as text, with these arguments."""
        fields = [f"{name}={_text(getattr(self, name))}" for name in names]
        if self.algorithm:
            fields.append(f"algorithm={self.algorithm}")
        if self.shape is not None and len(self.shape) != 1:
            fields.append(f"shape={self.shape}")
        whole = f"{self.part_of}: " if self.part_of else ""
        return f"{whole}{self.operation.label}({', '.join(fields)})"


Extent: TypeAlias = Callable[[Call, int, int], int]
"""How many elements of a buffer a call uses on a rank of a group: extent(call, rank, world_size)."""


def no_elements(call: Call, rank: int, world_size: int) -> int:
    return 0


def one_block(call: Call, rank: int, world_size: int) -> int:
    """This rank's block; of an operation without blocks, the whole buffer."""
    return call.count if call.counts is None else call.counts[rank]


def all_blocks(call: Call, rank: int, world_size: int) -> int:
    return call.count * world_size if call.counts is None else sum(call.counts)


def blocks_sent(call: Call, rank: int, world_size: int) -> int:
    return sum(call.send_counts or ())


def blocks_received(call: Call, rank: int, world_size: int) -> int:
    return sum(call.recv_counts or ())


class Operation:
    """One collective."""

    def __init__(
        self, name: str, takes: str, sends: Extent, receives: Extent, rooted: str = "", label: str = ""
    ) -> None:
        """What the operation takes, reads and writes.

        Args:
            takes: the arguments of its method, as fields of Call, in order; one that works in place has `send` alone.
            sends: how much its send buffer holds, where it is used.
            receives: how much its receive buffer holds, where it is used.
            rooted: whether only root "reads" or "writes".
            label: its name in texts, if that is another.
        """
        self.name, self.label = name, label or name
        self.takes = tuple(takes.split())
        self.sends, self.receives, self.rooted = sends, receives, rooted
        self.agrees = tuple(field for field in self.takes if field in AGREED)
        self.vectors = tuple(field for field in self.takes if field.endswith("counts"))
        """Which of its arguments have a count for each rank."""
        self.arguments, self.agreement = fields_of(self.takes), fields_of(self.agrees)


def fields_of(names: Sequence[str]) -> Callable[[Call], tuple[Any, ...]]:
    """A function that returns these fields of a call."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda call: tuple(getattr(call, name) for name in names)


BARRIER = Operation("barrier", "", no_elements, no_elements)
ALL_REDUCE = Operation("all_reduce", "send count dtype op", one_block, one_block)
BROADCAST = Operation("broadcast", "send count dtype root", one_block, one_block, "reads")
REDUCE = Operation("reduce", "send count dtype op root", one_block, one_block, "writes")
ALL_GATHER = Operation("all_gather", "send recv count dtype", one_block, all_blocks)
GATHER = Operation("gather", "send recv count dtype root", one_block, all_blocks, "writes")
SCATTER = Operation("scatter", "send recv count dtype root", all_blocks, one_block, "reads")
REDUCE_SCATTER = Operation("reduce_scatter", "send recv count dtype op", all_blocks, one_block)
ALL_TO_ALL = Operation("all_to_all", "send recv count dtype", all_blocks, all_blocks)
ALL_GATHER_V = Operation("all_gather_v", "send recv counts dtype", one_block, all_blocks)
GATHER_V = Operation("gather_v", "send recv counts dtype root", one_block, all_blocks, "writes")
SCATTER_V = Operation("scatter_v", "send recv counts dtype root", all_blocks, one_block, "reads")
REDUCE_SCATTER_V = Operation("reduce_scatter_v", "send recv counts dtype op", all_blocks, one_block)
ALL_TO_ALL_V = Operation("all_to_all_v", "send recv send_counts recv_counts dtype", blocks_sent, blocks_received)

OPERATIONS = (
    BARRIER, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL,
    ALL_GATHER_V, GATHER_V, SCATTER_V, REDUCE_SCATTER_V, ALL_TO_ALL_V,
)  # fmt: skip
"""What `Communicator.run` runs."""

SCAN = Operation("scan", "send recv count dtype op", one_block, one_block)
EXSCAN = Operation("exscan", "send recv count dtype op", one_block, one_block)
"""What `Communicator.run` runs too if its `scans` says so; else the array level composes them of others."""

SPLIT = Operation("split", "", no_elements, no_elements)
"""Compared and traced like the others; `Communicator.split` makes the call."""

BY_NAME = {operation.name: operation for operation in OPERATIONS}
_VECTORS = {row: BY_NAME[f"{row.name}_v"] for row in OPERATIONS if f"{row.name}_v" in BY_NAME}
_REFUSED = [[op.refused_for(dtype) for op in ReduceOp] for dtype in DType]


def divided(count: int, n: int) -> tuple[int, ...]:
    """How many of `count` elements each of n shares has, as in numpy.array_split: the first shares get one more."""
    each, longer = divmod(count, n)
    return (each + 1,) * longer + (each,) * (n - longer)


def check_count(count: int) -> None:
    if count < 0:
        raise ValueError(f"count={count}: expected 0 or more")


def check_rank(rank: int, world_size: int, name: str = "root") -> int:
    if not 0 <= rank < world_size:
        raise ValueError(f"{name}={rank}: expected a rank of the group, 0 to {world_size - 1}")
    return rank


def _check_counts(counts: Sequence[int], world_size: int, name: str) -> None:
    if len(counts) != world_size:
        raise ValueError(f"{name}: expected {world_size} counts, one for each rank, got {len(counts)}")
    if world_size and min(counts) < 0:
        raise ValueError(f"{name}={list(counts)}: expected counts of 0 or more")


def in_bytes(counts: Sequence[int] | None, dtype: DType) -> tuple[int, ...]:
    item = ITEMSIZE[dtype]
    return tuple(count * item for count in counts or ())


def _text(value: Any) -> str:
    if isinstance(value, DType):
        return DTYPE_NAMES[value]
    if isinstance(value, ReduceOp):
        return value.name.lower()
    if isinstance(value, Sequence) and len(value) > MOST_COUNTS:
        return f"[{', '.join(map(str, value[:MOST_COUNTS]))}, ... {len(value)} in all, sum {sum(value)}]"
    return str(list(value)) if isinstance(value, Sequence) else str(value)
