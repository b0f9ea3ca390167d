"""Registered memory: arrays in which the other ranks read and write in place, with no copy in between."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from rankwise.arrays.buffers import dtype_argument, shape_argument
from rankwise.group.base import GroupBase


class RegisteredMemory(GroupBase):
    """The operation that makes registered memory."""

    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> Any:
        """A new array in registered memory, of zeros; a tensor where `dtype` is one of torch's.

        Where all ranks of a collective give registered memory, it moves no byte more than it must; where
        one does not, it goes the usual way, with the same bits. Each rank may make arrays as it likes:
        this is no collective. The memory is freed with the array and the last view of it, also long
        after the group was closed. On a backend without such memory it is an ordinary array.
        MemoryError where the machine has too little left, ValueError where no machine could have it.

        >>> x = group.empty((2, 3), np.float32)
        >>> group.all_reduce(x).shape, x.dtype
        ((2, 3), dtype('float32'))
        """
        wanted, kind = dtype_argument(dtype)
        lengths = shape_argument(shape, "shape", wanted)
        memory = self.comm.allocate(prod(lengths) * wanted.itemsize)
        if memory is None:
            return kind.empty(lengths, wanted).finish()
        return kind.over(np.asarray(memory), lengths, wanted)
