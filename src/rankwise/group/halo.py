"""The exchange of ghost cells between neighbours along one axis of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise.arrays.buffers import target
from rankwise.group.base import integer
from rankwise.group.group import Group

UP, DOWN = 1022, 1023
"""The tags of data for the next and for the previous rank, which may be the same rank.

They are the highest tags that every MPI allows, so that most programs do not use them.
"""


def exchange(
    line: Group, before: int | None, after: int | None, x: Any, width: int, dimension: int, async_op: bool
) -> Any:
    """Fill the ghost cells of x from the neighbours along its dimension; see Mesh.exchange_halo.

    line: the group of the ranks along the axis. before, after: the neighbours' ranks in it, None at an edge.
    """
    buffer = target(x)
    shape, ndim = buffer.shape, len(buffer.shape)
    if buffer.given is not x or not ndim:
        what = type(x).__name__ if ndim else f"{type(x).__name__} of no dimension"
        raise TypeError(f"x: expected a writable array of at least one dimension, got {what}")
    width, along = integer(width, "width"), integer(dimension, "dimension")
    if width < 1:
        raise ValueError(f"width={width}: expected at least 1")
    if not -ndim <= along < ndim:
        raise ValueError(f"dimension={along}: expected a dimension of x, which has {ndim}")
    along %= ndim
    if shape[along] < 3 * width:
        raise ValueError(
            f"x: length {shape[along]} along dimension {along}; expected at least {3 * width}: "
            f"width={width} ghost cells at each end, and as many cells between them"
        )

    def cells(start: int, stop: int | None) -> Any:
        return x[(slice(None),) * along + (slice(start, stop),)]

    sends = [(cells(width, 2 * width), before, DOWN), (cells(-2 * width, -width), after, UP)]
    receives = [(cells(-width, None), after, DOWN), (cells(0, width), before, UP)]
    exchanged: Callable[..., Any] = line._exchange_all
    return exchanged(sends, receives, lambda _: x, async_op)
