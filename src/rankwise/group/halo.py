"""The exchange of ghost cells between neighbours along one axis of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.arrays.buffers import target
from rankwise.contract.errors import MismatchError
from rankwise.contract.types import DType
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
    others = shape[:along] + shape[along + 1 :]
    ours = np.array([shape[along], width, along, int(buffer.dtype), ndim, *_first_dimensions(others)], np.int64)

    def cells(start: int, stop: int | None) -> Any:
        return x[(slice(None),) * along + (slice(start, stop),)]

    def body() -> Any:
        _check(line.all_gather(ours), width)
        line.batch(
            [(cells(width, 2 * width), before, DOWN), (cells(-2 * width, -width), after, UP)],
            [(cells(-width, None), after, DOWN), (cells(0, width), before, UP)],
        )
        return x

    run: Callable[..., Any] = line._run
    return run(body, None, async_op)


_COMPARED = 6  # lengths of other dimensions that the ranks compare


def _first_dimensions(lengths: tuple[int, ...]) -> list[int]:
    """Exactly _COMPARED numbers: the lengths and then ones; of too many lengths, the last ones are multiplied."""
    if len(lengths) > _COMPARED:
        lengths = (*lengths[: _COMPARED - 1], int(np.prod(lengths[_COMPARED - 1 :])))
    return [*lengths, *[1] * (_COMPARED - len(lengths))]


def _check(ranks: np.ndarray[Any, Any], width: int) -> None:
    """Compare what all ranks of the axis passed. If they differ, every rank raises the same error."""
    if (ranks[:, 1:] != ranks[0, 1:]).any():
        names = ("width", "dimension", "dtype", "number of dimensions")
        other = int(np.flatnonzero((ranks[:, 1:] != ranks[0, 1:]).any(axis=1))[0])
        column = int(np.flatnonzero(ranks[other, 1:] != ranks[0, 1:])[0])
        what = names[column] if column < len(names) else "length of another dimension"
        passed = [int(ranks[rank, 1 + column]) for rank in (other, 0)]
        theirs, ours = (DType(one).name.lower() for one in passed) if what == "dtype" else map(str, passed)
        raise MismatchError(
            f"exchange_halo: along the axis, rank {other} passed another {what} than rank 0: {theirs}, not {ours}"
        )
    for rank, length in enumerate(ranks[:, 0].tolist()):
        if length < 3 * width:
            raise ValueError(
                f"x: the array of rank {rank} along the axis has length {length}; expected at least {3 * width}: "
                f"width={width} ghost cells at each end, and as many cells between them"
            )
