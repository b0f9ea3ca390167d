"""Arrays in any memory layout, with guards around what an operation may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from random_programs.oracle import Array, differs

if TYPE_CHECKING:
    from rankwise import Group

GAP = 0xA5


class Memory:
    """An array for an operation: views have gaps, which nobody may write."""

    def __init__(self, values: Array, layout: str = "plain", group: Group | None = None) -> None:
        shape, dtype = values.shape, values.dtype
        self._gaps: Array | None = None
        self.array: Array
        if layout == "registered" and group is not None:
            self.array = group.empty(shape, dtype)
        elif layout == "transposed":
            self.array = np.empty(shape, dtype, order="F")
        elif layout in ("strided", "reversed") and shape:
            whole = filled((*shape[:-1], 2 * shape[-1]), dtype)
            self.array, self._gaps = whole[..., ::2], whole[..., 1::2]
            if layout == "reversed":
                self.array = self.array[::-1]
        else:
            self.array = np.empty(shape, dtype)
        self.array[...] = values

    def differs(self, want: Array, exact: bool = True) -> str:
        """Say how it differs from what it should hold, or nothing."""
        if self._gaps is not None and (np.ascontiguousarray(self._gaps).view(np.uint8) != GAP).any():
            return "the gaps of a view were written"
        return differs(self.array, want, exact)


def room(shape: tuple[int, ...], dtype: np.dtype[Any], layout: str = "plain", group: Group | None = None) -> Memory:
    """Memory for a result, which holds something else."""
    return Memory(filled(shape, dtype), layout, group)


def filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array: Array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = GAP
    return array
