"""Mesh: the ranks of a group as a grid with named axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from rankwise.arrays.buffers import target
from rankwise.contract.closing import Closeable
from rankwise.contract.public import public
from rankwise.contract.ranks import count_of_ranks
from rankwise.group.base import each_of, integer, of_kind
from rankwise.group.group import Group


@public
class Mesh(Closeable):
    """The ranks of `group` as a grid, the last axis fastest: Mesh(group, dp=2, pp=2, tp=2) for 8 ranks.

    Every rank of the group creates it, with the same axes. The group's ranks fill the grid row by row, so that adjacent
    ranks share the last axes.

    Each axis is an attribute, for example mesh.tp: the group of the ranks that differ from this one only along that
    axis. Closing the mesh, or leaving its `with` block, closes its groups, but not the group from which it was made.
    `shift` returns the neighbours along an axis, and `exchange_halo` fills an array's ghost cells from them.

    Args:
        periodic: the names of the axes along which the first rank follows the last, or True for all axes.
        **axes: the size of each axis. One may be -1 and is then computed from the others.

    Attributes:
        group: the group from which the mesh was made.
        periodic: the names of the periodic axes.
        axes: {name: size}.
        coordinates: {name: this rank's coordinate}.

    Example:
        >>> with rw.Mesh(group, dp=1, tp=2) as mesh:
        ...     mesh.axes, mesh.coordinates["dp"], mesh.coordinates["tp"] == group.rank, mesh.tp.all_reduce(1)
        ({'dp': 1, 'tp': 2}, 0, True, 2)
    """

    def __init__(self, group: Group, /, *, periodic: bool | str | Iterable[str] = False, **axes: int) -> None:
        self.group = _checked(group)
        self.axes = _sizes(axes, group.world_size)
        self.periodic = _periodic(periodic, self.axes)
        places = np.unravel_index(group.rank, tuple(self.axes.values()))
        self.coordinates: dict[str, int] = dict(zip(self.axes, map(int, places), strict=True))
        self._groups: dict[tuple[str, ...], Group] = {}
        self._lines = {
            name: (self.along(name), *self._neighbours(name, 1), dimension) for dimension, name in enumerate(self.axes)
        }
        """For each axis its group, the ranks before and after this one there, and the array's dimension."""

    @classmethod
    def balanced(cls, group: Group, axes: int | Iterable[str], *, periodic: bool | str | Iterable[str] = False) -> Mesh:
        """A mesh whose axes are as close in size as possible, the largest first, as with MPI_Dims_create.

        Args:
            axes: their names; or how many, and their names are axis0, axis1, ...

        Example:
            >>> with rw.Mesh.balanced(group, ["rows", "columns"]) as mesh:
            ...     mesh.axes
            {'rows': 2, 'columns': 1}
        """
        _checked(group)
        if isinstance(axes, str) or not isinstance(axes, Iterable):
            count = integer(axes, "axes")  # type: ignore[arg-type]  # a str is refused
            if count < 1:
                raise ValueError(f"axes={count}: expected at least one")
            names = [f"axis{number}" for number in range(count)]
        else:
            names = list(axes)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"axes={names}: expected at least one name, and each once")
        return cls(
            group, periodic=periodic, **dict(zip(names, balanced_sizes(group.world_size, len(names)), strict=True))
        )

    def __getattr__(self, name: str) -> Group:
        groups: dict[tuple[str, ...], Group] = self.__dict__.get("_groups", {})
        if (name,) in groups:
            return groups[name,]
        raise AttributeError(f"the mesh has no axis {name!r}; its axes are {', '.join(self.__dict__.get('axes', ()))}")

    def __repr__(self) -> str:
        return f"<Mesh {self.axes}, this rank at {self.coordinates}>"

    def along(self, *names: str) -> Group:
        """The group of the ranks that differ from this one only along these axes, in the mesh's order.

        The first call for a combination of several axes is collective over the mesh's group.

        Example:
            >>> with rw.Mesh(group, dp=2, tp=1) as mesh:
            ...     mesh.along("dp", "tp").ranks, mesh.along("tp").world_size
            ((0, 1), 1)
        """
        for name in names:
            if name not in self.axes:
                raise ValueError(f"names={name!r}: expected axes of the mesh, {', '.join(self.axes)}")
        wanted = tuple(name for name in self.axes if name in names)
        if wanted not in self._groups:
            fixed = {name: 0 if name in wanted else place for name, place in self.coordinates.items()}
            label = f"{self.group.name}.{'.'.join(wanted)}"
            self._groups[wanted] = self.group.split(self.rank_at(**fixed), self.group.rank, label)
        return self._groups[wanted]

    def rank_at(self, **places: int) -> int:
        """The rank in the mesh's group at these coordinates; axes that are not named keep this rank's coordinate.

        Example:
            >>> with rw.Mesh(group, dp=2, tp=1) as mesh:
            ...     mesh.rank_at(dp=1, tp=0)
            1
        """
        rank = 0
        for name, size in self.axes.items():
            place = integer(places.pop(name, self.coordinates[name]), name)
            if not 0 <= place < size:
                raise ValueError(f"{name}={place}: expected 0 to {size - 1}")
            rank = rank * size + place
        if places:
            raise ValueError(f"places={sorted(places)}: expected axes of the mesh, {', '.join(self.axes)}")
        return rank

    def shift(self, axis: str | int, by: int = 1) -> tuple[int | None, int | None]:
        """(source, destination) for data that moves `by` places along an axis, as with MPI_Cart_shift.

        Args:
            axis: its name or its number, 0 for the mesh's first.

        Returns:
            Two ranks of the mesh's group; None, the null rank, beyond the edge of an axis that is not periodic.

        Example:
            >>> with rw.Mesh(group, columns=2) as mesh:
            ...     source, destination = mesh.shift("columns", +1)
            ...     (source, destination) == ((None, 1) if group.rank == 0 else (0, None))
            True
        """
        axis = self._name(axis)
        before, after = self._neighbours(axis, integer(by, "by"))
        return tuple(None if place is None else self.rank_at(**{axis: place}) for place in (before, after))  # type: ignore[return-value]  # two

    def exchange_halo(
        self, x: Any, axis: str | int, width: int = 1, *, dimension: int | None = None, async_op: bool = False
    ) -> Any:
        """Fill the ghost cells of `x` from the neighbours along `axis`, in place; returns x.

        The ghost cells at each end receive a copy of that neighbour's outermost cells that are not ghost cells. At the
        edge of an axis that is not periodic, they stay as they are. Along a periodic axis of one rank, the rank is its
        own neighbour.

        Whole layers are exchanged, including the ghost cells of the other dimensions, so exchanges along one axis after
        another also fill the corners. Every rank along the axis calls it with the same width, dtype, dimension and
        lengths of the other dimensions; the length along the axis may differ. The exchange consists of messages only,
        in the group of the axis, with the tags 1022 and 1023.

        Args:
            x: this rank's part of a grid, a NumPy array or tensor with any strides.
            axis: its name or its number, 0 for the mesh's first.
            width: the number of layers of ghost cells at each end of x along its `dimension`.
            dimension: by default the number of the axis.
            async_op: True returns a Work, whose result is x.

        Raises:
            MismatchError: this rank receives another number of cells, or another dtype.
            ValueError: x's length along the axis is less than three times the width.

        Example:
            >>> x = np.array([-1, group.rank, group.rank, -1])
            >>> with rw.Mesh(group, columns=2) as mesh:
            ...     mesh.exchange_halo(x, "columns").tolist() == ([-1, 0, 0, 1] if group.rank == 0 else [0, 1, 1, -1])
            True
        """
        line, before, after, along = self._lines[self._name(axis)]
        if dimension is not None:
            along = dimension
        simple = not async_op and type(width) is int and type(along) is int
        if simple and line._shortcuts.exchange_halo_array(x, before, after, width, along):
            return x
        return _exchange_halo(line, before, after, x, width, along, async_op)

    def gather(self, x: Any, dst: int = 0) -> Any:
        """Join the ranks' blocks into the whole field on rank `dst` of the mesh's group.

        Each rank passes its block without ghost cells: `x[1:-1, 1:-1]`, for example.
        The first axis of the mesh belongs to the array's first dimension, and so on; blocks may differ in length as far
        as they fit together.

        Returns:
            A new NumPy array on dst, else None.

        Raises:
            ValueError: x has fewer dimensions than the mesh has axes, or, on dst, the blocks do not fit together.

        Example:
            >>> with rw.Mesh(group, rows=1, columns=2) as mesh:
            ...     field = mesh.gather(np.full((2, 2), group.rank))
            >>> group.rank > 0 or field.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
            True
        """
        block = np.asarray(x)
        if block.ndim < len(self.axes):
            raise ValueError(
                f"x: expected a dimension for each axis of the mesh, at least {len(self.axes)}, got {block.ndim}"
            )
        blocks = self.group.gather_object(block, dst)
        if blocks is None:
            return None
        for dimension, size in reversed(list(enumerate(self.axes.values()))):
            blocks = [np.concatenate(blocks[at : at + size], dimension) for at in range(0, len(blocks), size)]
        return blocks[0]

    def _name(self, axis: str | int) -> str:
        if isinstance(axis, str) and axis in self.axes:
            return axis
        if not isinstance(axis, str) and 0 <= (number := integer(axis, "axis")) < len(self.axes):
            return list(self.axes)[number]
        names = ", ".join(self.axes)
        raise ValueError(f"axis={axis!r}: expected an axis of the mesh, {names}, or 0 to {len(self.axes) - 1}")

    def _neighbours(self, axis: str, by: int) -> tuple[int | None, int | None]:
        """The coordinates of the ranks `by` places before and after this one along an axis; None beyond an edge."""
        size, coordinate = self.axes[axis], self.coordinates[axis]

        def at(place: int) -> int | None:
            if axis in self.periodic:
                return place % size
            return place if 0 <= place < size else None

        return at(coordinate - by), at(coordinate + by)

    def close(self) -> None:
        """Close the groups of the axes. May be repeated."""
        for part in self._groups.values():
            part.close()


def _checked(group: Group) -> Group:
    return of_kind(group, "group", Group, "a Group (a rank outside a group has no mesh of it)")


def _sizes(axes: dict[str, int], ranks: int) -> dict[str, int]:
    """The axes with -1 replaced. Raises ValueError if their product is not the number of ranks."""
    if not axes:
        raise ValueError("axes: expected at least one, such as dp=2, got none")
    sizes = {name: integer(size, name) for name, size in axes.items()}
    for name, size in sizes.items():
        if hasattr(Mesh, name) or name in ("group", "axes", "coordinates", "periodic") or name.startswith("_"):
            raise ValueError(f"axes={name!r}: expected another name, this is an attribute of every mesh")
        if size < 1 and size != -1:
            raise ValueError(f"{name}={size}: expected a size of at least 1, or -1 to compute it")
    unknown = [name for name, size in sizes.items() if size == -1]
    known = prod(size for size in sizes.values() if size != -1)
    if len(unknown) > 1:
        raise ValueError(f"{', '.join(unknown)}: expected at most one -1")
    if unknown:
        sizes[unknown[0]] = ranks // known
    if prod(sizes.values()) != ranks:
        given = ", ".join(f"{name}={size}" for name, size in axes.items())
        raise ValueError(f"{given}: expected sizes whose product is the group's {count_of_ranks(ranks)}")
    return sizes


def _periodic(given: bool | str | Iterable[str], axes: dict[str, int]) -> tuple[str, ...]:
    """The names of the periodic axes."""
    if isinstance(given, bool):
        return tuple(axes) if given else ()
    names = [given] if isinstance(given, str) else list(each_of(given, "periodic", "a bool, or axes"))
    for name in names:
        if name not in axes:
            raise ValueError(f"periodic={name!r}: expected axes of the mesh, {', '.join(axes)}, or a bool")
    return tuple(name for name in axes if name in names)


def balanced_sizes(ranks: int, axes: int) -> list[int]:
    """Sizes with the product `ranks`, the largest first, of which the largest and the smallest differ least."""

    def splits(left: int, count: int, most: int) -> Iterable[list[int]]:
        if count == 1:
            if left <= most:
                yield [left]
            return
        for size in range(min(left, most), 0, -1):
            if left % size == 0 and size**count >= left:
                for rest in splits(left // size, count - 1, size):
                    yield [size, *rest]

    return min(splits(ranks, axes, ranks), key=lambda sizes: (sizes[0] - sizes[-1], sizes))


# ---- the exchange of ghost cells between neighbours along one axis ----

UP, DOWN = 1022, 1023
"""The tags of data for the next and for the previous rank, which may be the same rank.

They are the highest tags that every MPI allows, so that most programs do not use them.
"""


def _exchange_halo(
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
