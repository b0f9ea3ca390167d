"""Ghost cells, exchanged with the neighbours on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def columns_first(x: np.ndarray[Any, Any]) -> Any:
    return np.asfortranarray(x)


def strided(x: np.ndarray[Any, Any]) -> Any:
    wide = np.zeros((x.shape[0] * 2, x.shape[1] * 3))
    wide[::2, ::3] = x
    return wide[::2, ::3]


def tensor(x: np.ndarray[Any, Any]) -> Any:
    return pytest.importorskip("torch").from_numpy(x.copy())


@pytest.mark.parametrize("periodic", [False, True, ("columns",)])
@pytest.mark.parametrize("make", [np.array, columns_first, strided, tensor])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (1, 3)])
def test_two_dimensions(rows: int, columns: int, make: Callable[[Any], Any], periodic: Any) -> None:
    """Against a padded global array, corners too, with parts of different lengths."""
    heights, widths, w = [4 + r for r in range(rows)], [3 + c for c in range(columns)], 2
    grid = 1.0 + np.arange(sum(heights) * sum(widths)).reshape(sum(heights), -1)
    padded = grid
    for axis, name in enumerate(("rows", "columns")):
        around = periodic is True or (periodic and name in periodic)
        pads = [(w, w) if number == axis else (0, 0) for number in range(2)]
        padded = np.pad(padded, pads, mode="wrap") if around else np.pad(padded, pads, constant_values=-1)

    def ranks(group: Group) -> None:
        with rw.Mesh(group, rows=rows, columns=columns, periodic=periodic) as mesh:
            r, c = mesh.coordinates.values()
            top, left = sum(heights[:r]), sum(widths[:c])
            want = padded[top : top + heights[r] + 2 * w, left : left + widths[c] + 2 * w]
            given = np.full_like(want, -1)
            given[w:-w, w:-w] = want[w:-w, w:-w]
            for asynchronous in (False, True):
                x = make(given)
                if asynchronous:
                    assert mesh.exchange_halo(x, "rows", w, async_op=True).wait() is x
                    work = mesh.exchange_halo(x, "columns", w, dimension=-1, async_op=True)
                    work.wait()
                else:
                    assert mesh.exchange_halo(x, "rows", w) is x
                    mesh.exchange_halo(x, "columns", w)
                np.testing.assert_array_equal(np.asarray(x), want)

    run_ranks(ranks, rows * columns)


@pytest.mark.parametrize("seed", range(10))
def test_any_dimensions(seed: int) -> None:
    """Two ranks around a ring, of which one only starts the exchange, so that it goes another way."""
    random = np.random.default_rng(seed)
    dims = int(random.integers(1, 5))
    along, width = int(random.integers(dims)), int(random.integers(1, 4))
    lengths, dtype = random.integers(1, 6, dims), random.choice(["f4", "i1", "c16", "u2"])
    orders = [random.permutation(dims) for _ in range(2)]  # of the axes in each rank's memory
    inner = []
    for _ in range(2):
        lengths[along] = width + int(random.integers(4))
        inner.append(random.integers(0, 100, lengths).astype(dtype))
    ring = np.concatenate(inner, along)
    starts = random.permutation([True, False])

    def ranks(group: Group) -> None:
        me = group.rank
        pads = [(width, width) if axis == along else (0, 0) for axis in range(dims)]
        first = (inner[0].shape[along] if me else 0) - width
        places = np.arange(first, first + inner[me].shape[along] + 2 * width) % ring.shape[along]
        want = np.take(ring, places, along)
        padded = np.pad(inner[me], pads)
        x = padded.transpose(orders[me]).copy().transpose(np.argsort(orders[me]))
        with rw.Mesh(group, line=2, periodic=True) as mesh:
            if starts[me]:
                assert mesh.exchange_halo(x, 0, width, dimension=along, async_op=True).wait() is x
            else:
                assert mesh.exchange_halo(x, "line", width, dimension=along - dims) is x
        np.testing.assert_array_equal(x, want)

    run_ranks(ranks, 2)


def test_only_messages_are_exchanged() -> None:
    def ranks(group: Group) -> set[str]:
        with rw.Mesh(group, line=-1, periodic=True) as mesh:
            group.barrier()  # the ranks are threads, whose operations are measured together: both have made the mesh
            with rw.trace.measure() as measured:
                mesh.exchange_halo(np.zeros((5, 5)), "line")
                mesh.exchange_halo(np.zeros((5, 5)), "line", async_op=True).wait()
        return {name for name, total in measured.by_operation.items() if total.count}

    assert run_ranks(ranks, 2)[0] <= {"send", "recv", "barrier"}


def test_another_shape_is_an_error_on_the_neighbour() -> None:
    def ranks(group: Group) -> None:
        with rw.Mesh(group, line=-1) as mesh:
            x = np.zeros((5, 3 + (group.rank == 2)))
            if group.rank == 0:
                mesh.exchange_halo(x, "line")
            else:
                with pytest.raises(rw.MismatchError, match=rf"from rank {3 - group.rank}"):
                    mesh.exchange_halo(x, "line")

    run_ranks(ranks, 3)


def test_bad_arguments() -> None:
    def ranks(group: Group) -> None:
        mesh = rw.Mesh(group, line=1)
        x = np.zeros(5)
        for args, error, text in (
            ((x, "row"), ValueError, "axis='row': expected an axis of the mesh, line, or 0 to 0"),
            ((x, "line", 0), ValueError, "width=0: expected at least 1"),
            ((x, "line", 1.0), TypeError, "width=1.0: expected an int"),
            ((3.0, "line"), TypeError, "x: expected a writable array of at least one dimension, got float"),
            ((x, "line", 2), ValueError, "x: length 5 along dimension 0; expected at least 6: width=2 ghost cells at"),
            ((np.zeros(()), "line"), TypeError, "x: expected a writable array of at least one"),
        ):
            with pytest.raises(error, match=f"^{text}"):
                mesh.exchange_halo(*args)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^dimension=1: expected a dimension of x, which has 1$"):
            mesh.exchange_halo(x, "line", dimension=1)
        mesh.close()

    run_ranks(ranks, 1)
