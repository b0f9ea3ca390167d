"""What each boundary makes of arrays that are not plain memory: it gives the right numbers, or refuses them.

A boundary is what turns a program's array into an address and a count. Not in the table, because they cannot occur:
JAX's arrays and Tcl's tensors are plain, torch has no byte order and no read-only tensors, DLPack no byte order. mpi4py
takes the memory of Fortran arrays as it is, as MPI does, and does not look for overlap. C sees an address:
native/tests/capi_calls.c has its refusals. Numba does not see alignment; tests/frontends/numba has its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.testing import run_ranks

RIGHT = None


class Exported:
    """An array of some library, which offers DLPack alone."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def unaligned() -> Any:
    x = np.frombuffer(bytearray(49), np.float64, 6, 1).reshape(2, 3)
    x[...] = VALUES
    return x


def fixed() -> Any:
    x = VALUES.copy()
    x.flags.writeable = False
    return x


def python(group: rw.Group, x: Any) -> Any:
    result = group.all_reduce(x)
    assert np.array_equal(group.all_gather(x)[0], VALUES)
    return result


def dlpack(group: rw.Group, x: Any) -> Any:
    return np.asarray(python(group, Exported(x)).x)


def torch(group: rw.Group, x: Any) -> Any:
    return python(group, pytest.importorskip("torch").from_numpy(x)).numpy()


def steps() -> Any:
    return np.repeat(VALUES, 2, 1)[:, ::2]


def shared_rows() -> Any:
    return np.lib.stride_tricks.as_strided(np.ones(3), (2, 3), (0, 8))


VALUES = np.arange(6.0).reshape(2, 3)
ROWS: list[tuple[Callable[[rw.Group, Any], Any], str, Callable[[], Any], str | None]] = [
    (python, "Fortran order", lambda: np.asfortranarray(VALUES), RIGHT),
    (python, "steps", steps, RIGHT),
    (python, "byte order", lambda: VALUES.astype(">f8"), RIGHT),
    (python, "alignment", unaligned, RIGHT),
    (python, "read-only", fixed, "^x: expected a writable array"),
    (python, "overlap within", shared_rows, "^x: .* share memory"),
    (dlpack, "Fortran order", lambda: np.asfortranarray(VALUES), RIGHT),
    (dlpack, "steps", steps, RIGHT),
    (torch, "Fortran order", lambda: np.asfortranarray(VALUES), RIGHT),
    (torch, "steps", steps, RIGHT),
]


@pytest.mark.parametrize(("boundary", "name", "make", "refusal"), ROWS, ids=[f"{b.__name__}-{n}" for b, n, *_ in ROWS])
def test_boundary(
    boundary: Callable[[rw.Group, Any], Any], name: str, make: Callable[[], Any], refusal: str | None
) -> None:
    def ranks(group: rw.Group) -> None:
        x = make()
        if refusal is None:
            assert np.array_equal(boundary(group, x), VALUES), name
        else:
            before = x.copy()
            with pytest.raises((TypeError, ValueError, BufferError), match=refusal):
                boundary(group, x)
            assert np.array_equal(x, before), name

    run_ranks(ranks, 1, backend="solo")


def test_mpi4py() -> None:
    """On a rank of its own: importing MPI initialises it for the whole process."""
    rows: list[tuple[Callable[[], Any], str | None]] = [
        (lambda: np.asfortranarray(VALUES), RIGHT),
        (unaligned, RIGHT),
        (steps, "contiguous"),
        (lambda: VALUES.astype(">f8"), "cannot map"),
        (fixed, "read-only"),
    ]

    def ranks() -> None:
        from rankwise.frontends.mpi4py import MPI

        for make, refusal in rows:
            x = make()
            if refusal is None:
                MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, x)
            else:
                with pytest.raises((ValueError, BufferError, KeyError, MPI.Exception), match=refusal):
                    MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, x)
            assert np.array_equal(x, VALUES)  # the sum over one rank

    rw.spawn(ranks, 1)


def test_numpy_result_that_overlaps() -> None:
    def ranks(group: rw.Group) -> None:
        x = np.zeros((2, 3))
        with pytest.raises(ValueError, match=r"^out: expected memory of its own, but it overlaps x$"):
            group.all_gather(x[0], out=x[:1])

    run_ranks(ranks, 1, backend="solo")


def test_no_elements_share_no_memory() -> None:
    def ranks(group: rw.Group) -> None:
        x = np.zeros((0, 3), ">f8")[::2]
        assert group.all_reduce(x) is x

    run_ranks(ranks, 1, backend="solo")
