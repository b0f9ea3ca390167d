"""Registered memory: arrays in which the other ranks read and write in place, with no copy in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from rankwise.api.arrays import dtype_argument, shape_argument
from rankwise.api.base import GroupBase


class Memory(GroupBase):
    """empty."""

    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> Any:
        """A new array in registered memory, of zeros; a tensor where `dtype` is one of torch's.

        Where all ranks of a collective give registered memory, it moves no byte more than it must; where
        one does not, it goes the usual way, with the same bits. Each rank may make arrays as it likes:
        this is no collective. The memory is freed with the array and the last view of it, also long
        after the group was closed. On a backend without such memory it is an ordinary array.
        MemoryError where the machine has too little left.

        >>> x = group.empty((2, 3), np.float32)
        >>> group.all_reduce(x).shape, x.dtype
        ((2, 3), dtype('float32'))
        """
        wanted, kind = dtype_argument(dtype)
        lengths = shape_argument(shape, "shape")
        memory = self.comm.allocate(prod(lengths) * wanted.itemsize)
        if memory is None:
            return kind.empty(lengths, wanted).finish()
        return kind.over(np.asarray(memory), lengths, wanted)


@contextmanager
def registered(group: Any = None) -> Iterator[None]:
    """A context in which NumPy makes its arrays, those of a page or more, in registered memory of `group`.

    group: by default the group of all ranks. For programs whose arrays are made where `group.empty`
    does not reach; every temporary counts, so keep what is inside short. It holds for this thread.

    >>> with rw.registered():
    ...     gradients = np.zeros(100_000)
    >>> group.all_reduce(gradients).shape
    (100000,)
    """
    if group is None:
        from rankwise.api.init import default_group

        group = default_group()
    with group.comm.allocating():
        yield
