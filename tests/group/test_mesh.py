"""Mesh: groups along named axes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def test_three_axes() -> None:
    def ranks(group: Group) -> None:
        mesh = rw.Mesh(group, dp=2, pp=2, tp=2)
        grid = np.arange(8).reshape(2, 2, 2)
        dp, pp, tp = (int(place[0]) for place in np.where(grid == group.rank))
        assert mesh.coordinates == {"dp": dp, "pp": pp, "tp": tp}
        assert mesh.axes == {"dp": 2, "pp": 2, "tp": 2}
        assert mesh.tp.ranks == tuple(grid[dp, pp, :])
        assert mesh.pp.ranks == tuple(grid[dp, :, tp])
        assert mesh.dp.ranks == tuple(grid[:, pp, tp])
        assert (mesh.dp.rank, mesh.pp.rank, mesh.tp.rank) == (dp, pp, tp)
        assert mesh.dp.name == "world.dp"
        plane = mesh.along("tp", "dp")
        assert plane is mesh.along("dp", "tp")
        assert plane.ranks == tuple(grid[:, pp, :].ravel())
        assert mesh.along("tp") is mesh.tp
        assert mesh.rank_at(dp=1, pp=0, tp=1) == grid[1, 0, 1]
        assert mesh.rank_at(pp=1) == grid[dp, 1, tp]
        assert repr(mesh) == f"<Mesh {mesh.axes}, this rank at {mesh.coordinates}>"
        assert mesh.dp.all_reduce(group.rank) == grid[:, pp, tp].sum()
        mesh.close()
        assert mesh.tp.closed
        assert plane.closed
        assert not group.closed

    run_ranks(8, ranks)


@settings(deadline=None, max_examples=15)
@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda sizes: np.prod(sizes) <= 9))
def test_any_grid(sizes: list[int]) -> None:
    n = int(np.prod(sizes))
    grid = np.arange(n).reshape(sizes)
    names = [f"axis{i}" for i in range(len(sizes))]

    def ranks(group: Group) -> None:
        unknown = dict(zip(names, [*sizes[:-1], -1], strict=True))
        with rw.Mesh(group, **unknown) as mesh:
            place = tuple(mesh.coordinates.values())
            assert grid[place] == group.rank
            for axis, name in enumerate(names):
                along = np.moveaxis(grid, axis, -1)[tuple(p for i, p in enumerate(place) if i != axis)]
                assert getattr(mesh, name).ranks == tuple(along)
            for other in itertools.product(*(range(size) for size in sizes)):
                assert mesh.rank_at(**dict(zip(names, other, strict=True))) == grid[other]

    run_ranks(n, ranks)


def test_bad_arguments() -> None:
    def ranks(group: Group) -> None:
        for axes, text in (
            ({}, "axes: expected at least one"),
            ({"dp": 3}, "dp=3: expected sizes whose product is the group's 2 ranks"),
            ({"dp": 3, "tp": -1}, "dp=3, tp=-1: expected sizes whose product is the group's 2 ranks"),
            ({"dp": -1, "tp": -1}, "dp, tp: expected at most one -1"),
            ({"dp": 0, "tp": 2}, "dp=0: expected a size of at least 1"),
            ({"close": 2}, "axes='close': expected another name"),
            ({"group": 2}, "axes='group': expected another name"),
        ):
            with pytest.raises((ValueError, TypeError), match=f"^{text}"):
                rw.Mesh(group, **axes)
        with pytest.raises(TypeError, match=r"^dp='2': expected an int, got str$"):
            rw.Mesh(group, dp="2")
        with pytest.raises(TypeError, match=r"^group: expected a Group, got None; a rank outside a group has no mesh"):
            rw.Mesh(None, dp=1)
        with rw.Mesh(group, tp=2) as mesh:
            with pytest.raises(AttributeError, match=r"^the mesh has no axis 'pp'; its axes are tp$"):
                mesh.pp  # noqa: B018
            with pytest.raises(ValueError, match=r"^names='pp': expected axes of the mesh, tp$"):
                mesh.along("pp")
            with pytest.raises(ValueError, match=r"^tp=2: expected 0 to 1$"):
                mesh.rank_at(tp=2)
            with pytest.raises(ValueError, match=r"^places=\['pp'\]: expected axes of the mesh, tp$"):
                mesh.rank_at(pp=0)

    run_ranks(2, ranks)
