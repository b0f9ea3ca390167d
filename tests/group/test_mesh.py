"""Mesh: groups along named axes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rankwise as rw
from rankwise.group.group import Group
from rankwise.group.mesh import balanced_sizes
from rankwise.testing import run_ranks


def test_a_timeout_names_the_axis() -> None:
    def ranks(group: Group) -> None:
        with rw.Mesh(group, tp=2) as mesh, mesh.tp.timeout_of(0.2):
            if group.rank == 0:
                with pytest.raises(rw.CollectiveTimeout) as raised:
                    mesh.tp.barrier()
                headline, waiting, absent, *_ = str(raised.value).splitlines()
                assert headline == "rank 1 of group 'world.tp' did not reach barrier #1 within the timeout of 0.2 s"
                assert waiting.startswith("  rank 0: in barrier #1 for ")
                assert absent.startswith("  rank 1: in barrier #2 of all ranks for ")
            group.barrier()

    run_ranks(ranks, 2)


def test_the_whole_field() -> None:
    """Blocks of different lengths, on the group of a part of the ranks, whose array has a dimension without an axis."""
    whole = np.arange(5 * 7 * 2).reshape(5, 7, 2)

    def ranks(group: Group) -> None:
        part = group.subgroup([4, 3, 2, 1])
        if part is None:
            return
        with rw.Mesh(part, rows=2, columns=2) as mesh:
            row, column = mesh.coordinates.values()
            block = whole[row * 2 : 2 + row * 3, column * 3 : 3 + column * 4]
            found = mesh.gather(block, dst=3)
            assert (found is None) == (part.rank != 3)
            assert found is None or np.array_equal(found, whole)
            with pytest.raises(
                ValueError, match=r"^x: expected a dimension for each axis of the mesh, at least 2, got 1$"
            ):
                mesh.gather(whole[0, 0])

    run_ranks(ranks, 5)


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

    run_ranks(ranks, 8)


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

    run_ranks(ranks, n)


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
        with pytest.raises(TypeError, match=r"^group=None: expected a Group \(a rank outside a group has no mesh of"):
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

    run_ranks(ranks, 2)


def test_neighbours() -> None:
    def ranks(group: Group) -> None:
        with rw.Mesh(group, rows=2, columns=3, periodic=["columns"]) as mesh:
            assert mesh.periodic == ("columns",)
            grid = np.arange(6).reshape(2, 3)
            r, c = mesh.coordinates.values()
            for by in (-4, -1, 0, 1, 2):
                assert mesh.shift("columns", by) == (grid[r, (c - by) % 3], grid[r, (c + by) % 3])
                places = [grid[at, c] if 0 <= at < 2 else None for at in (r - by, r + by)]
                assert mesh.shift("rows", by) == tuple(places)
            source, destination = mesh.shift("rows")
            got = group.sendrecv(np.full(2, group.rank), destination, source)
            assert got.tolist() == [0 if source is None else source] * 2
            with pytest.raises(
                ValueError, match=r"^axis='row': expected an axis of the mesh, rows, columns, or 0 to 1$"
            ):
                mesh.shift("row")
        with rw.Mesh(group, a=2, b=3, periodic=True) as mesh:
            assert mesh.periodic == ("a", "b")
        for periodic in ("rows", ["a", "c"]):
            with pytest.raises(ValueError, match=r"^periodic='(rows|c)': expected axes of the mesh, a, b, or a bool$"):
                rw.Mesh(group, a=2, b=3, periodic=periodic)

    run_ranks(ranks, 6)


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        (1, [1, 1]),
        (6, [3, 2]),
        (7, [7, 1]),
        (12, [4, 3]),
        (12, [3, 2, 2]),
        (16, [4, 4]),
        (36, [4, 3, 3]),
        (64, [4, 4, 4]),
        (60, [60]),
        (1024, [32, 32]),
    ],
)
def test_balanced_sizes(ranks: int, sizes: list[int]) -> None:
    assert balanced_sizes(ranks, len(sizes)) == sizes


def test_a_balanced_mesh() -> None:
    def ranks(group: Group) -> None:
        with rw.Mesh.balanced(group, 2, periodic="axis1") as mesh:
            assert mesh.axes == {"axis0": 2, "axis1": 2}
            assert mesh.periodic == ("axis1",)
        with rw.Mesh.balanced(group, ("x", "y", "z")) as mesh:
            assert mesh.axes == {"x": 2, "y": 2, "z": 1}
        for axes in (0, [], ["x", "x"]):
            with pytest.raises(ValueError, match=r"^axes=.*: expected at least one"):
                rw.Mesh.balanced(group, axes)
        with pytest.raises(TypeError, match=r"^axes='xy': expected an int"):
            rw.Mesh.balanced(group, "xy")

    run_ranks(ranks, 4)
