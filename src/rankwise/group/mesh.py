"""Mesh: the ranks of a group as a grid with named axes."""

from __future__ import annotations

from math import prod
from types import TracebackType

from rankwise.group.base import integer
from rankwise.group.group import Group


class Mesh:
    """The ranks of `group` as a grid, the last axis fastest: Mesh(group, dp=2, pp=2, tp=2) for 8 ranks.

    Every rank of the group creates it, with the same axes. One size may be -1 and is then computed from
    the others. The group's ranks fill the grid row by row, so that adjacent ranks share the last axes.

    Each axis is an attribute, for example mesh.tp: the group of the ranks that differ from this one only
    along that axis. axes: {name: size}. coordinates: {name: this rank's coordinate}. Closing the mesh, or
    leaving its `with` block, closes its groups, but not the group from which it was made.

    >>> with rw.Mesh(group, dp=1, tp=2) as mesh:
    ...     mesh.axes, mesh.coordinates["dp"], mesh.coordinates["tp"] == group.rank, mesh.tp.all_reduce(1)
    ({'dp': 1, 'tp': 2}, 0, True, 2)
    """

    def __init__(self, group: Group, /, **axes: int) -> None:
        if not isinstance(group, Group):
            raise TypeError(f"group: expected a Group, got {group!r}; a rank outside a group has no mesh of it")
        self.group = group
        self.axes = _sizes(axes, group.world_size)
        places = _places(self.axes, group.rank)
        self.coordinates: dict[str, int] = dict(zip(self.axes, places, strict=True))
        self._groups: dict[tuple[str, ...], Group] = {}
        for name in self.axes:
            self.along(name)

    def __getattr__(self, name: str) -> Group:
        groups = self.__dict__.get("_groups", {})
        if (name,) in groups:
            found: Group = groups[name,]
            return found
        raise AttributeError(f"the mesh has no axis {name!r}; its axes are {', '.join(self.__dict__.get('axes', ()))}")

    def __repr__(self) -> str:
        return f"<Mesh {self.axes}, this rank at {self.coordinates}>"

    def along(self, *names: str) -> Group:
        """The group of the ranks that differ from this one only along these axes, in the mesh's order.

        The first call for a combination of several axes is collective over the mesh's group.

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

    def close(self) -> None:
        """Close the groups of the axes. May be repeated."""
        for part in self._groups.values():
            part.close()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sizes(axes: dict[str, int], ranks: int) -> dict[str, int]:
    """The axes with -1 replaced. Raises ValueError if their product is not the number of ranks."""
    if not axes:
        raise ValueError("axes: expected at least one, such as dp=2, got none")
    sizes = {name: integer(size, name) for name, size in axes.items()}
    for name, size in sizes.items():
        if hasattr(Mesh, name) or name in ("group", "axes", "coordinates") or name.startswith("_"):
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
        raise ValueError(f"{given}: expected sizes whose product is the group's {ranks} ranks")
    return sizes


def _places(axes: dict[str, int], rank: int) -> list[int]:
    places = []
    for size in reversed(axes.values()):
        rank, place = divmod(rank, size)
        places.append(place)
    return places[::-1]
