"""The bucket plan: which gradient is stored in which bucket, and where. Pure, so every rank computes the same plan.

A bucket is a block of memory that is reduced at once. It holds gradients of one dtype, in the order in
which they become ready. A bucket is therefore full early, and its reduction runs while later gradients
are still being computed (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rankwise.contract.types import DType

ALIGNED = 64  # bytes; each gradient begins on a cache line


@dataclass(frozen=True)
class GradientSpec:
    """The properties of a gradient that the plan depends on."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def count(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


@dataclass(frozen=True)
class BucketLayout:
    """A bucket: the numbers of its parameters, and the element at which each begins. count: all its elements."""

    dtype: DType
    members: tuple[int, ...]
    offsets: tuple[int, ...]
    count: int


def plan(parameters: Sequence[GradientSpec], order: Sequence[int], bucket_bytes: int) -> list[BucketLayout]:
    """Buckets of at most `bucket_bytes` (a larger gradient gets its own), in the order in which they become full.

    order: every parameter's number, in the order in which the gradients become ready.
    """
    open_: dict[DType, list[int]] = {}
    sizes: dict[DType, int] = {}
    full: list[list[int]] = []
    for number in order:
        parameter = parameters[number]
        size = _aligned(parameter) * parameter.dtype.itemsize
        members = open_.setdefault(parameter.dtype, [])
        if members and sizes[parameter.dtype] + size > bucket_bytes:
            full.append(members)
            open_[parameter.dtype] = members = []
        sizes[parameter.dtype] = size + (sizes[parameter.dtype] if members else 0)
        members.append(number)
    place = {number: at for at, number in enumerate(order)}
    buckets = sorted([*full, *open_.values()], key=lambda members: place[members[-1]])
    return [_layout(parameters, members) for members in buckets]


def _aligned(parameter: GradientSpec) -> int:
    """The number of elements, rounded up to whole cache lines."""
    unit = max(1, ALIGNED // parameter.dtype.itemsize)
    return (parameter.count + unit - 1) // unit * unit


def _layout(parameters: Sequence[GradientSpec], members: Sequence[int]) -> BucketLayout:
    offsets, count = [], 0
    for number in members:
        offsets.append(count)
        count += _aligned(parameters[number])
    return BucketLayout(parameters[members[0]].dtype, tuple(members), tuple(offsets), count)
