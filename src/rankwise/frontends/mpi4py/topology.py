"""Cartesian communicators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from rankwise.frontends.mpi4py.errors import check_length, error
from rankwise.frontends.mpi4py.messages import Messages
from rankwise.frontends.mpi4py.status import PROC_NULL
from rankwise.group.mesh import balanced_sizes

GRAPH, CART, DIST_GRAPH = 1, 2, 3


class Cartesian:
    """A grid of ranks, numbered along the last axis first."""

    def __init__(self, dims: Sequence[int], periods: Sequence[int]) -> None:
        self.dims, self.periods = [int(n) for n in dims], [int(bool(p)) for p in periods]
        self.size = prod(self.dims)

    def rank(self, coords: Sequence[int]) -> int:
        number = 0
        check_length(coords, len(self.dims))
        for at, n, period in zip(coords, self.dims, self.periods, strict=True):
            if not period and not 0 <= at < n:
                raise error("ERR_ARG", f"coords={list(coords)}: expected 0 to {n - 1} along an axis without period")
            number = number * n + at % n
        return number

    def coords(self, rank: int) -> list[int]:
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"rank={rank}: expected a rank of the grid, 0 to {self.size - 1}")
        return [int(at) for at in np.unravel_index(rank, self.dims)] if self.dims else []


def new_grid(dims: Any, periods: Any, ranks: int, too_large: str) -> Cartesian:
    """too_large: the error class for a grid that needs more than these ranks."""
    dims = [dims] if isinstance(dims, int) else list(dims)
    if periods is None or isinstance(periods, (bool, int)):
        periods = [bool(periods)] * len(dims)
    check_length(periods, len(dims))
    if any(n < 0 for n in dims):
        raise error("ERR_DIMS", f"dims={dims}: expected sizes of 0 or more")
    grid = Cartesian(dims, periods)
    if grid.size > ranks:
        raise error(too_large, f"dims={grid.dims}: expected at most {ranks} ranks in all")
    return grid


class Grid(Messages):
    """The methods of a Cartesian communicator."""

    @property
    def _grid(self) -> Cartesian:
        cartesian: Cartesian | None = self._live().topology
        if cartesian is None:
            raise error("ERR_TOPOLOGY", "this communicator has no Cartesian topology")
        return cartesian

    def Get_dim(self) -> int:
        return len(self._grid.dims)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        return self.dims, self.periods, self.coords

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        return self._grid.rank(coords)

    def Get_coords(self, rank: int) -> list[int]:
        return self._grid.coords(rank)

    dim = ndim = property(Get_dim)
    topo = property(Get_topo)
    dims = property(lambda self: [*self._grid.dims])
    periods = property(lambda self: [*self._grid.periods])
    coords = property(lambda self: self._grid.coords(self._live().rank))

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """(source, dest) of a shift by `disp` along an axis; PROC_NULL beyond an end."""
        where, neighbours = self._grid, []
        if not 0 <= direction < len(where.dims):
            raise error("ERR_ARG", f"direction={direction}: expected an axis of the grid, 0 to {len(where.dims) - 1}")
        for step in (-disp, disp):
            coords = where.coords(self._live().rank)
            coords[direction] += step
            inside = where.periods[direction] or 0 <= coords[direction] < where.dims[direction]
            neighbours.append(where.rank(coords) if inside else PROC_NULL)
        return neighbours[0], neighbours[1]

    def Sub(self: Any, remain_dims: Sequence[bool]) -> Any:
        """The part of the grid along these axes in which this rank is."""
        where: Cartesian = self._grid
        check_length(remain_dims, len(where.dims))
        kept_axes = [axis for axis, keep in enumerate(remain_dims) if keep]
        others = Cartesian([1 if axis in kept_axes else n for axis, n in enumerate(where.dims)], where.periods)
        fixed = [0 if axis in kept_axes else at for axis, at in enumerate(where.coords(self.rank))]
        left = Cartesian([where.dims[axis] for axis in kept_axes], [where.periods[axis] for axis in kept_axes])
        return self._made(self._live().group.split(others.rank(fixed)), type(self), left)


def Compute_dims(nnodes: int, dims: Any) -> list[int]:
    """Sizes of a grid of `nnodes` ranks that are as equal as possible, the larger ones first.

    Args:
        dims: how many axes, or for each its size, 0 where it is wanted.
    """
    sizes = [0] * dims if isinstance(dims, int) else list(dims)
    left, rest = divmod(nnodes, prod(n for n in sizes if n))
    if rest or any(n < 0 for n in sizes):
        raise error("ERR_DIMS", f"dims={sizes}: expected sizes whose product divides {nnodes}")
    free = [axis for axis, n in enumerate(sizes) if not n]
    if left != 1 and not free:
        raise error("ERR_DIMS", f"the given sizes leave a factor of {left}, but no axis is free for it")
    for axis, n in zip(free, balanced_sizes(left, len(free)) if free else (), strict=True):
        sizes[axis] = n
    return sizes
