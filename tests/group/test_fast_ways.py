"""Arrays of every kind take the engine's fast way, whether or not the caller has memory for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.group import collectives, scan
from rankwise.group.group import Group
from rankwise.testing import run_ranks

N = 2
ROWS = 4

Call = Callable[[Group, Any], Any]

CALLS: dict[str, tuple[Call, Callable[[int], Any]]] = {
    "all_reduce": (lambda group, x: group.all_reduce(x), lambda rank: total()),
    "all_gather": (lambda group, x: group.all_gather(x), lambda rank: np.stack([data(0), data(1)])),
    "gather": (lambda group, x: group.gather(x, 1), lambda rank: np.stack([data(0), data(1)]) if rank else None),
    "scatter": (lambda group, x: group.scatter(x, 1), lambda rank: np.split(data(1), N)[rank]),
    "reduce_scatter": (lambda group, x: group.reduce_scatter(x, "max"), lambda rank: np.split(data(1), N)[rank]),
    "all_to_all": (
        lambda group, x: group.all_to_all(x),
        lambda rank: np.concatenate([np.split(data(source), N)[rank] for source in range(N)]),
    ),
    "scan": (lambda group, x: group.scan(x), lambda rank: total() if rank else data(0)),
    "exscan": (lambda group, x: group.exscan(x), lambda rank: data(0) if rank else 0 * data(0)),
    "sendrecv": (lambda group, x: group.sendrecv(x, 1 - group.rank, 1 - group.rank), lambda rank: data(1 - rank)),
    "irecv": (lambda group, x: exchanged(group, x), lambda rank: data(1 - rank)),
}


def data(rank: int) -> np.ndarray[Any, Any]:
    return np.arange(ROWS * 3.0).reshape(ROWS, 3) + 100 * rank


def total() -> np.ndarray[Any, Any]:
    return data(0) + data(1)


def exchanged(group: Group, x: Any) -> Any:
    receiving = group.irecv(x * 0, 1 - group.rank)
    group.isend(x, 1 - group.rank).wait()
    return receiving.wait()


def array_of(kind: str, rank: int) -> Any:
    if kind == "numpy":
        return data(rank)
    torch = pytest.importorskip("torch")
    return torch.from_numpy(data(rank))


@pytest.fixture
def no_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general way begins with what makes a Buffer of an array."""

    def refused(*args: object) -> None:
        raise AssertionError("this array takes the general way")

    for module in (collectives, scan):
        monkeypatch.setattr(module, "source", refused)
    for name in ("_call", "_outgoing", "_incoming"):
        monkeypatch.setattr(Group, name, refused)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", CALLS)
def test_arrays(name: str, kind: str, no_general_way: None) -> None:
    call, expected = CALLS[name]

    def ranks(group: Group) -> None:
        x = array_of(kind, group.rank)
        for _ in range(3):
            found = call(group, x if name != "all_reduce" else array_of(kind, group.rank))
            wanted = expected(group.rank)
            assert found is None if wanted is None else type(found) is type(x), found
            assert wanted is None or (np.asarray(found) == wanted).all(), found

    run_ranks(ranks, N, backend="threads")


@pytest.mark.parametrize("number", [1.5, 3, True])
def test_numbers(number: float, no_general_way: None) -> None:
    def ranks(group: Group) -> None:
        mine = type(number)(number * (1 + group.rank))
        largest = type(number)(number * N)
        for found in (group.all_reduce(mine, "max"), group.broadcast(mine, 1)):
            assert (type(found), found) == (type(number), largest)
        found = group.reduce(mine, 1, "max")
        assert (type(found), found) == ((type(number), largest) if group.rank == 1 else (type(None), None))
        both = [number, largest]
        gathered = [group.all_gather(mine), group.gather(mine, 1)]
        assert [None if found is None else found.tolist() for found in gathered] == [both, both if group.rank else None]
        assert [group.scan(mine, "max").tolist(), group.exscan(mine).tolist()] == [mine, number if group.rank else 0]

    run_ranks(ranks, N, backend="threads")


RESULTS: dict[str, Callable[[Group, Any, Any], Any]] = {
    "all_gather": lambda group, x, out: group.all_gather(x, out=out),
    "gather": lambda group, x, out: group.gather(x, out=out),
    "scatter": lambda group, x, out: group.scatter(x if group.rank == 0 else None, out=out),
    "reduce_scatter": lambda group, x, out: group.reduce_scatter(x, out=out),
    "all_to_all": lambda group, x, out: group.all_to_all(x, out=out),
    "scan": lambda group, x, out: group.scan(x, out=out),
    "exscan": lambda group, x, out: group.exscan(x, out=out),
}


@pytest.mark.parametrize("name", RESULTS)
def test_ranks_that_go_different_ways_meet(name: str) -> None:
    """With memory for the result, without, and by the general way, in every combination of two ranks."""

    def ranks(group: Group) -> list[Any]:
        call, x = RESULTS[name], data(group.rank)
        wanted = call(group, x, None)
        room = None if wanted is None else np.empty_like(wanted)
        strided = None if wanted is None else np.empty((*wanted.shape, 2))[..., 0]
        ways = [None, room, strided]
        for number in range(len(ways) ** 2):
            way = ways[number // len(ways) if group.rank else number % len(ways)]
            found = call(group, x, way)
            assert way is None or found is None or found is way
            assert wanted is None or (found == wanted).all()
        return []

    run_ranks(ranks, N)


def test_a_number_meets_an_array_without_axes() -> None:
    def ranks(group: Group) -> None:
        ways: list[Callable[[], Any]] = [lambda: 2.0, lambda: np.float64(2), lambda: np.array(2.0)]
        for number in range(len(ways) ** 2):
            x = ways[number // len(ways) if group.rank else number % len(ways)]()
            assert group.all_reduce(x) == 4
        with pytest.raises(rw.MismatchError):
            group.all_reduce(2.0 if group.rank else np.array([2.0]))

    run_ranks(ranks, N)


def test_autograd_is_told_of_what_is_received() -> None:
    torch: Any = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        x = torch.ones(3)
        before = x._version
        receiving = group.irecv(x, 1 - group.rank)
        group.send(torch.zeros(3), 1 - group.rank)
        assert receiving.wait() is x
        assert x._version > before

    run_ranks(ranks, N, backend="threads")
