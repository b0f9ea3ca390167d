"""What is measured: the operations, their sizes, and the formulas of bandwidths.

Words: `size` is the bytes of the array that each rank gives to an operation (for scatter: that the
root gives). `total` is the bytes that the whole operation is about, the larger of what a rank gives
and what a rank receives; for all_gather and gather it is size * n, otherwise it is the size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2} | {
    f"{kind}int{bits}": bits // 8 for kind in ("", "u") for bits in (8, 16, 32, 64)
}
"""Names and bytes of an element."""

OPS = ("sum", "product", "min", "max", "mean", "band", "bor", "bxor")


@dataclass(frozen=True)
class Operation:
    """gathers: every rank's array ends on one rank or all. splits: an array is divided over the ranks.

    bus: the factor from algorithm to bus bandwidth, given the number of ranks.
    """

    name: str
    bus: Callable[[int], float]
    gathers: bool = False
    splits: bool = False
    reduces: bool = False

    @property
    def has_bytes(self) -> bool:
        return self.name != "barrier"

    def count(self, size: int, itemsize: int, n: int) -> int:
        """Elements of the array for at least `size` bytes: at least one, and one for each rank where it is split."""
        if not self.has_bytes:
            return 0
        parts = n if self.splits else 1
        return max(1, math.ceil(size / (itemsize * parts))) * parts

    def total(self, size: int, n: int) -> int:
        return size * n if self.gathers else size

    def algorithm_bandwidth(self, size: int, n: int, seconds: float) -> float:
        """total / time, in GB/s (10^9 bytes)."""
        return self.total(size, n) / seconds / 1e9

    def bus_bandwidth(self, size: int, n: int, seconds: float) -> float:
        """In GB/s: what one link of a ring would carry, comparable between operations and numbers of ranks."""
        return self.algorithm_bandwidth(size, n, seconds) * self.bus(n)

    def memory(self, size: int, n: int) -> int:
        """Bytes of arrays that all ranks together hold."""
        return n * (size + self.total(size, n))


def _share(n: int) -> float:
    return (n - 1) / n


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


def _one(n: int) -> float:
    return 1.0


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("barrier", _one),
        Operation("all_reduce", _twice, reduces=True),
        Operation("broadcast", _one),
        Operation("reduce", _one, reduces=True),
        Operation("all_gather", _share, gathers=True),
        Operation("gather", _share, gathers=True),
        Operation("scatter", _share, splits=True),
        Operation("reduce_scatter", _share, splits=True, reduces=True),
        Operation("all_to_all", _share, splits=True),
        Operation("send_recv", _one),
    )
}

CONVENTIONS = """\
size       bytes of the array that each rank gives (scatter: that the root gives, send_recv: of the
           message), rounded up to whole elements, and for scatter, reduce_scatter and all_to_all to
           as many elements for each rank
time       calls are timed in batches after a barrier; of a batch the slowest rank counts. Median,
           minimum and 99th percentile are over batches, per call. A batch of short calls has many
           of them in a row, about 0.2 ms in all, 2 ms where there are more ranks than cores.
           send_recv: half a round trip, all pairs at once
alg GB/s   total / median time, in 10^9 bytes a second. total = size; all_gather, gather: size * n
bus GB/s   alg * factor, the factors of nccl-tests: all_reduce 2(n-1)/n; all_gather, gather, scatter,
           reduce_scatter, all_to_all (n-1)/n; broadcast, reduce, send_recv 1
ratio      rankwise's median / the peer's: below 1 rankwise is faster
wrong      bytes of the results that differ from the known right result (--check), over all ranks
"""


def parse_size(text: str) -> int:
    """'64K' -> 65536. ValueError for what is no size of at least one byte."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in ("K", "M", "G") else ""
    digits = number.removesuffix(unit)
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(f"{text!r}: expected a size like 8, 64K or 16M")
    return int(digits) * units[unit]


def parse_sizes(text: str, factor: int) -> list[int]:
    """'8:64M' -> 64M, and down from it by `factor` to 8, in ascending order; '8,1K,1M' -> those."""
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
    """65536 -> '64K'; '100' for what is no multiple of 1024."""
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
    """Each rank's times of its batches -> of each batch, the slowest rank's."""
    return [max(batch) for batch in zip(*seconds, strict=True)]


def summary(times: Sequence[float]) -> Times:
    ordered = sorted(times)
    return Times(len(ordered), median(ordered), ordered[0], ordered[math.ceil(0.99 * len(ordered)) - 1])
