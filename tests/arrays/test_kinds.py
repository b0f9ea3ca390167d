"""Every operation on every kind of array gives right results, of the input's kind."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankwise.group.group import Group
from rankwise.testing import run_ranks

Make = Callable[[list[int]], Any]


class Exchanged:
    """A producer of DLPack and nothing else, as far as NumPy is concerned."""

    def __init__(self, data: Any) -> None:
        self.data = np.array(data)

    def __dlpack__(self, **how: Any) -> Any:
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def tolist(self) -> Any:
        return self.data.tolist()


class Immutable(Exchanged):
    """As JAX has them: read-only, with a namespace that makes more of the kind."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.data.flags.writeable = False

    def __array_namespace__(self) -> type[Immutable]:
        return Immutable

    @classmethod
    def asarray(cls, data: Any) -> Immutable:
        return cls(data)


def tensor(values: list[int]) -> Any:
    import torch

    return torch.tensor(values)


def every_second(values: list[int]) -> Any:
    """A view with gaps."""
    return np.repeat(np.array(values), 2)[::2]


WRITABLE: dict[str, Make] = {
    "NumPy": np.array,
    "NumPy with gaps": every_second,
    "NumPy of the other byte order": lambda values: np.array(values, ">i4"),
    "NumPy of half precision": lambda values: np.array(values, np.float16),
    "torch": tensor,
    "torch with gaps": lambda values: tensor([0, *values, 0]).flip(0)[1:-1].flip(0),
    "array": lambda values: array.array("q", values),
    "bytearray": bytearray,
    "memoryview": lambda values: memoryview(bytearray(values)),
    "ctypes": lambda values: (ctypes.c_short * len(values))(*values),
    "DLPack": Exchanged,
}
IMMUTABLE: dict[str, Make] = {"like JAX": Immutable}
READ_ONLY: dict[str, Make] = {"bytes": bytes, "read-only memoryview": lambda values: memoryview(bytes(values))}


def plain(x: Any) -> list[int]:
    return [int(value) for value in (x.tolist() if hasattr(x, "tolist") else list(x))]


def of_kind(got: Any, x: Any) -> None:
    """Results that are new arrays: tensors for tensors, the immutable kind for that, NumPy's for all others."""
    keeps = "torch" in type(x).__module__ or isinstance(x, Immutable)
    assert isinstance(got, type(x) if keeps else np.ndarray)


def uses(group: Group, make: Make) -> None:
    """Operations that read x."""
    me = group.rank
    everybody = [[1, 2, 3, 4], [11, 12, 13, 14]]
    mine, total = everybody[me], [12, 14, 16, 18]

    def gives(got: Any, want: Any) -> None:
        of_kind(got, make(mine))
        assert (got.data if isinstance(got, Immutable) else got).tolist() == want

    gives(group.all_gather(make(mine)), everybody)
    gives(group.all_gather_v(make(mine[me:])), [1, 2, 3, 4, 12, 13, 14])
    gives(group.reduce_scatter(make(mine)), total[2 * me :][:2])
    gives(group.reduce_scatter_v(make(mine), [1, 3]), [total[:1], total[1:]][me])
    gives(group.all_to_all(make(mine)), [[1, 2, 11, 12], [3, 4, 13, 14]][me])
    gives(group.all_to_all_v(make(mine), [1, 3])[0], [[1, 11], [2, 3, 4, 12, 13, 14]][me])
    gives(group.scatter(make(mine), 1), [[11, 12], [13, 14]][me])
    gives(group.scatter_v(make(mine), [3, 1] if me == 1 else None, 1), [[11, 12, 13], [14]][me])
    gives(group.scan(make(mine)), [mine, total][me])
    gives(group.exscan(make(mine)), [[0] * 4, everybody[0]][me])
    for gathered, want in (
        (group.gather(make(mine)), everybody),
        (group.gather_v(make(mine)), everybody[0] + everybody[1]),
    ):
        if me == 0:
            gives(gathered, want)
    x = make(mine)
    sending = group.isend(x, 1 - me)
    code = np.asarray(x.data if isinstance(x, Exchanged) else memoryview(x) if type(x) is bytes else x).dtype
    assert group.recv((4,), 1 - me, dtype=code.newbyteorder("=")).tolist() == everybody[1 - me]
    sending.wait()


@pytest.mark.parametrize("kind", [*WRITABLE, *IMMUTABLE])
def test_in_place(kind: str) -> None:
    make = {**WRITABLE, **IMMUTABLE}[kind]

    def ranks(group: Group) -> None:
        me = group.rank
        mine, total = [1 + 10 * me, 2 + 10 * me], [12, 14]

        def gives(x: Any, got: Any, want: list[int]) -> None:
            assert (got is x) == (kind in WRITABLE)
            assert plain(got) == want
            assert plain(x) == (want if kind in WRITABLE else mine)

        for keywords in ({}, {"async_op": True}):

            def result(got: Any, keywords: Any = keywords) -> Any:
                return got.wait() if keywords else got

            x = make(mine)
            gives(x, result(group.all_reduce(x, **keywords)), total)
            x = make(mine)
            got = result(group.broadcast(x, 1, **keywords))
            if me == 0:
                gives(x, got, [11, 12])
            else:
                assert got is x
            x = make(mine)
            got = result(group.reduce(x, 1, **keywords))
            if me == 1:
                gives(x, got, total)
            else:
                assert got is None
                assert plain(x) == mine
        x = make(mine)
        values, at = group.all_reduce(x, "maxloc")
        gives(x, values, [11, 12])
        assert plain(at) == [1, 1]
        sending = group.isend(make(mine), 1 - me)
        x = make([0, 0])
        got = group.recv(x, 1 - me)
        assert plain(got) == [11 - 10 * me, 12 - 10 * me]
        sending.wait()

    run_ranks(ranks, 2)


@pytest.mark.parametrize("kind", [*WRITABLE, *IMMUTABLE, *READ_ONLY])
def test_read_only_inputs(kind: str) -> None:
    run_ranks(lambda group: uses(group, {**WRITABLE, **IMMUTABLE, **READ_ONLY}[kind]), 2)


def test_structured_arrays_are_refused() -> None:
    def ranks(group: Group) -> None:
        x = np.zeros(3, [("a", "f8"), ("b", "i4")])
        sentence = r"x: structured arrays are not supported; pass each field separately, such as x\['a'\]"
        for call in (group.all_reduce, group.all_gather, group.all_to_all, group.scan):
            with pytest.raises(TypeError, match=f"^{sentence}$"):
                call(x)
        assert group.all_reduce(x["a"].copy()) is not None
        assert group.all_reduce(x["b"], "max") is not None  # a view with gaps

    run_ranks(ranks, 1)


def test_overlapping_in_and_out_are_refused() -> None:
    def ranks(group: Group) -> None:
        base = np.arange(12.0)
        x = base[:4]
        for call, out in (
            (group.all_gather, base[:8].reshape(2, 4)),
            (group.all_gather, base[3:11].reshape(2, 4)),
            (group.reduce_scatter, x[:2]),
            (group.all_to_all, base[2:6]),
            (group.scan, x),
            (group.all_gather_v, base[:8]),
        ):
            with pytest.raises(ValueError, match=r"^out: expected memory of its own, but it overlaps x$"):
                call(x, out=out)
        assert group.all_gather(x, out=base[4:].reshape(2, 4)).tolist() == [[0, 1, 2, 3]] * 2

    run_ranks(ranks, 2)


def memory_available() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.slow
def test_more_than_2_to_the_31_elements() -> None:
    count = 2**31 + 5
    needed = 3 * count
    if memory_available() < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free memory")
    places = [0, 1, 2**31 - 1, 2**31, count - 1]

    def ranks(group: Group) -> None:
        x = np.zeros(count, np.int8)
        if group.rank == 0:
            x[places] = [1, 2, 3, 4, 5]
        group.broadcast(x)
        assert x[places].tolist() == [1, 2, 3, 4, 5]
        assert np.count_nonzero(x[2**31 - 1000 :]) == 3
        # Offsets beyond 2**31 in a result that is made of parts.
        part = group.scatter_v(x, [count - 4, 4]) if group.rank == 0 else group.scatter_v()
        assert part[-4:].tolist() == ([0, 0, 3, 4] if group.rank == 0 else [0, 0, 0, 5])

    run_ranks(ranks, 2, timeout=110)
