"""Registered memory: arrays that the other ranks read and write in place, without an intermediate copy."""

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
        """A new zeroed array in registered memory.

        If all ranks pass registered memory to a collective, it copies no byte more than necessary; if one rank does
        not, the usual algorithms run, with the same bits as result. This call is not collective: each rank may create
        arrays as it likes. The memory is freed with the array and its last view, even long after the group was closed.
        Until the group is closed, freed memory is kept for the next array of the same size. On a backend without such
        memory the array is an ordinary one.

        Args:
            dtype: a torch dtype gives a tensor.

        Raises:
            MemoryError: the machine has too little memory left.
            ValueError: the size is impossible.

        Example:
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
