"""Hooks of the GradientReducer that send less data: half the bits, or only the largest elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.contract.types import DType
from rankwise.group.group import Group
from rankwise.overlap import memory
from rankwise.overlap.reducer import Bucket


class BF16Hook:
    """Reduces float32 and float64 buckets in bfloat16: half the bytes, or a quarter, and 8 bits of precision.

    Sums are accumulated in float32 and rounded once. Buckets of other dtypes are sent unchanged. NumPy arrays need the
    package ml_dtypes.

    Example:
        >>> reducer = rw.overlap.GradientReducer([np.zeros(3)], group, hook=rw.overlap.BF16Hook())
        >>> reducer.mark_ready(0, np.array([1.0, 1.001, group.rank]))
        >>> reducer.wait_and_unpack()[0].tolist()
        [1.0, 1.0, 0.5]
    """

    def __init__(self) -> None:
        self._halves: dict[int, Any] = {}

    def __call__(self, bucket: Bucket, group: Group) -> None:
        if bucket.dtype not in (DType.F32, DType.F64):
            group.all_reduce(bucket.flat, bucket.op)
            return
        half = self._halves.get(bucket.index)
        if half is None or half.shape != bucket.flat.shape:
            device = getattr(bucket.flat, "device", None) if hasattr(bucket.flat, "data_ptr") else None
            half = self._halves[bucket.index] = memory.flat(group, len(bucket.flat), DType.BF16, device)
        half[...] = bucket.flat
        group.all_reduce(half, bucket.op)
        bucket.flat[...] = half


class TopKHook:
    """Sends only the largest elements of each bucket, and keeps the rest for later steps (error feedback).

    A rank adds the elements that it does not send to its next gradients, so they are delayed but not lost (Stich et
    al., "Sparsified SGD with Memory", NeurIPS 2018). For float32 and float64 in host memory; other buckets are sent
    unchanged.

    Args:
        fraction: the share of a bucket's elements that is sent, the largest by magnitude.

    Example:
        >>> hook = rw.overlap.TopKHook(1 / 64)
        >>> reducer = rw.overlap.GradientReducer([np.zeros(64)], group, hook=hook)
        >>> gradient = np.zeros(64)
        >>> gradient[:2] = 3.0, 1.0
        >>> for step in range(2):
        ...     reducer.mark_ready(0, gradient)
        ...     print(reducer.wait_and_unpack()[0][:2].tolist())
        ...     gradient[0] = 0.0
        [3.0, 0.0]
        [0.0, 2.0]
    """

    def __init__(self, fraction: float = 0.01) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction}: expected more than 0 and at most 1")
        self.fraction = fraction
        self._kept: dict[int, np.ndarray[Any, Any]] = {}  # by parameter, since buckets may be repacked

    def __call__(self, bucket: Bucket, group: Group) -> None:
        if bucket.dtype not in (DType.F32, DType.F64):
            group.all_reduce(bucket.flat, bucket.op)
            return
        flat = np.asarray(bucket.flat)
        views = {number: np.asarray(view) for number, view in bucket.views.items()}
        for number, view in views.items():
            if number in self._kept:
                view += self._kept[number]
        count = max(1, round(self.fraction * flat.size))
        largest = np.sort(np.argpartition(np.abs(flat), -count)[-count:])
        values = flat[largest]
        flat[largest] = 0
        for number, view in views.items():
            self._kept[number] = view.copy()
        places, sent = group.all_gather(largest), group.all_gather(values)
        flat[...] = 0
        for where, what in zip(places, sent, strict=True):  # in the order of the ranks: the same bits everywhere
            flat[where] += what
        if bucket.op == "mean":
            flat /= group.world_size
