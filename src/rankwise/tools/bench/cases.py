"""The operations that the benchmark measures, their sizes, and the formulas of the bandwidths.

`size` is the number of bytes in the array that each rank passes to an operation (for scatter: the
array that the root passes). `total` is the size of the whole operation: the larger of a rank's input
and a rank's output. It is size * n for all_gather and gather, and equals size otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rankwise.contract.operations import BY_NAME, Operation, all_blocks, one_block

DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2} | {
    f"{kind}int{bits}": bits // 8 for kind in ("", "u") for bits in (8, 16, 32, 64)
}
"""{name: bytes of an element}."""

OPS = ("sum", "product", "min", "max", "mean", "band", "bor", "bxor")


MESSAGE = Operation("send_recv", "send recv count dtype", one_block, one_block)


@dataclass(frozen=True)
class MeasuredOperation:
    """An operation as the benchmark measures it.

    row: what it takes, reads and writes. per_call: how many of what is reported, such as messages, a timed call makes.
    """

    name: str
    row: Operation = MESSAGE
    per_call: int = 1

    @property
    def has_bytes(self) -> bool:
        return bool(self.row.takes)

    @property
    def reduces(self) -> bool:
        return "op" in self.row.takes

    @property
    def divides(self) -> bool:
        """Whether the array that a rank passes is divided among the ranks."""
        return self.row.sends is all_blocks

    @property
    def gathers(self) -> bool:
        """Whether every rank's array arrives at one rank or at all."""
        return self.row.receives is all_blocks and not self.divides

    @property
    def asked(self) -> list[object]:
        """The operation in the requests to the ranks, the fields of rank.Row."""
        return [self.name, self.row.takes, self.row.rooted, self.divides, self.row.receives is all_blocks]

    def count(self, size: int, itemsize: int, n: int) -> int:
        """How many elements hold at least `size` bytes: at least one, or one for each rank if the array is divided."""
        if not self.has_bytes:
            return 0
        parts = n if self.divides else 1
        return max(1, math.ceil(size / (itemsize * parts))) * parts

    def total(self, size: int, n: int) -> int:
        return size * n if self.gathers else size

    def algorithm_bandwidth(self, size: int, n: int, seconds: float) -> float:
        """total / time, in GB/s (10^9 bytes)."""
        return self.total(size, n) / seconds / 1e9

    def bus_bandwidth(self, size: int, n: int, seconds: float) -> float:
        """In GB/s: the load of one link of a ring, which is comparable between operations and numbers of ranks."""
        factor = 1.0
        if self.divides or self.gathers:
            factor = (n - 1) / n
        elif self.reduces and not self.row.rooted:
            factor = 2 * (n - 1) / n
        return self.algorithm_bandwidth(size, n, seconds) * factor

    def memory(self, size: int, n: int) -> int:
        """The bytes of all ranks' arrays together."""
        return n * (size + self.total(size, n))


OPERATIONS = {row.name: MeasuredOperation(row.name, row) for row in BY_NAME.values() if not row.vectors}
OPERATIONS["send_recv"] = MeasuredOperation("send_recv", per_call=2)

CONVENTIONS = """\
size       bytes of the array that each rank passes (scatter: that the root passes; send_recv: bytes of
           the message), rounded up to whole elements, and for scatter, reduce_scatter and all_to_all
           to the same number of elements for each rank
time       calls are timed in batches after a barrier, and the slowest rank's time counts. Median,
           minimum and 99th percentile are over batches, per call. A batch of short calls makes many
           calls in a row, for about 0.2 ms, or 2 ms if there are more ranks than cores.
           send_recv: half a round trip, all pairs at once
alg GB/s   total / median time, in 10^9 bytes a second. total = size; all_gather, gather: size * n
bus GB/s   alg * factor, the factors of nccl-tests: all_reduce 2(n-1)/n; all_gather, gather, scatter,
           reduce_scatter, all_to_all (n-1)/n; broadcast, reduce, send_recv 1
ratio      rankwise's median / the peer's: below 1 rankwise is faster
wrong      bytes of the results, on all ranks, that differ from the known correct result (--check)
"""


def parse_size(text: str) -> int:
    """'64K' -> 65536. Raises ValueError unless the text is a size of at least one byte."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in ("K", "M", "G") else ""
    digits = number.removesuffix(unit)
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(f"{text!r}: expected a size like 8, 64K or 16M")
    return int(digits) * units[unit]


def parse_sizes(text: str, factor: int) -> list[int]:
    """'8:64M' -> 64M and every `factor`-th part of it down to 8, ascending; '8,1K,1M' -> these three."""
    if ":" not in text:
        return sorted({parse_size(part) for part in text.split(",")})
    low, high = (parse_size(part) for part in text.split(":", 1))
    if low > high:
        raise ValueError(f"{text!r}: expected the smaller size first")
    sizes = []
    while high >= low * factor:
        sizes.append(high)
        high //= factor
    return sorted({low, *sizes, *([] if sizes else [high])})


def size_name(size: int) -> str:
    """65536 -> '64K'; 100, which is not a multiple of 1024, -> '100'."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


@dataclass(frozen=True)
class Times:
    """Seconds per call, over all batches of a point."""

    batches: int
    median: float
    minimum: float
    p99: float


def slowest(seconds: Sequence[Sequence[float]]) -> list[float]:
    """For each batch the slowest rank's time, from each rank's times of all batches."""
    return [max(batch) for batch in zip(*seconds, strict=True)]


def summary(times: Sequence[float]) -> Times:
    ordered = sorted(times)
    return Times(len(ordered), median(ordered), ordered[0], ordered[math.ceil(0.99 * len(ordered)) - 1])
