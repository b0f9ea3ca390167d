"""Ranks do not arrive, or make another call: every rank raises an error with the facts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from faults.trials import Trial, fault
from rankwise import CollectiveTimeout, Group, MismatchError

both = pytest.mark.parametrize("backend", ["threads", "shm"])

Call = Callable[[Group, Any], object]
CALLS: dict[str, Call] = {
    "barrier": lambda g, x: g.barrier(),
    "all_reduce": lambda g, x: g.all_reduce(x),
    "all_reduce max": lambda g, x: g.all_reduce(x, "max"),
    "all_reduce shorter": lambda g, x: g.all_reduce(x[1:]),
    "all_reduce int32": lambda g, x: g.all_reduce(x.view(np.int32)),
    "broadcast": lambda g, x: g.broadcast(x),
    "broadcast from 1": lambda g, x: g.broadcast(x, 1),
    "reduce": lambda g, x: g.reduce(x),
    "reduce to 1": lambda g, x: g.reduce(x, 1),
    "gather": lambda g, x: g.gather(x),
    "all_gather": lambda g, x: g.all_gather(x),
    "all_gather shorter": lambda g, x: g.all_gather(x[1:]),
    "scatter": lambda g, x: g.scatter(x),
    "reduce_scatter": lambda g, x: g.reduce_scatter(x),
    "all_to_all": lambda g, x: g.all_to_all(x),
    "split": lambda g, x: g.split(0),
    "scan": lambda g, x: g.scan(x),
    "work": lambda g, x: g.all_reduce(x, async_op=True).wait(),
}


@both
@fault(5, "timeout", few=1, full=60)
def test_timeout(trial: Trial, backend: str) -> None:
    n = trial.rng.randint(2, 5)
    limit = trial.rng.uniform(0.1, 0.4)
    away = set(trial.rng.sample(range(n), trial.rng.randint(1, n - 1)))
    name = trial.rng.choice([name for name in CALLS if name not in ("scatter", "broadcast", "broadcast from 1")])
    if name in ("gather", "reduce"):  # the others may be done with their part at once
        away = {1} if n > 1 else away
    before = trial.rng.randrange(20)
    told_folder = trial.folder / "told"
    told_folder.mkdir()

    made = trial.rng.random() < 0.7

    def body(world: Group) -> tuple[float, CollectiveTimeout]:
        group = world.dup() if made else world  # then the ranks' own works on, for the next trial
        for _ in range(before):
            group.all_reduce(np.ones(100))
        group.barrier()
        group.timeout = limit
        x = np.full(1200, group.rank, np.float32)
        if group.rank in away:
            while len(list(told_folder.iterdir())) < n - len(away):  # until all others have given up
                time.sleep(0.001)
        for call in (CALLS[name], CALLS["barrier"]):  # its own part may be complete before the others come
            begin = time.monotonic()
            try:
                call(group, x)
            except CollectiveTimeout as error:
                late = time.monotonic() - begin - limit
                if group.rank not in away:
                    (told_folder / str(group.rank)).touch()
                return late, error
        raise AssertionError("no timeout")

    told = trial.run(n, body, backend=backend)
    trial.took(max(late for rank, (late, _) in enumerate(told) if rank not in away))
    for rank, (_, error) in enumerate(told):
        assert rank in away or away <= set(error.missing), error
        assert set(error.states) == set(range(n))
        assert all(state.partition(" for ")[0] in str(error) for state in error.states.values()), error


@both
@fault(6, "mismatch", few=1, full=150)
def test_mismatch(trial: Trial, backend: str) -> None:
    n = trial.rng.randint(2, 4)
    odd = trial.rng.randrange(n)
    size = trial.rng.choice((12, 1200, 120_000))
    first, second = trial.rng.sample(list(CALLS), 2)
    while {first, second} == {"all_reduce", "work"}:
        first, second = trial.rng.sample(list(CALLS), 2)
    schedule = [
        trial.rng.choice(["all_reduce", "all_gather", "barrier", "work"]) for _ in range(trial.rng.randrange(12))
    ]

    made = trial.rng.random() < 0.7

    def body(world: Group) -> tuple[float, float, str]:
        group = world.dup() if made else world
        group.timeout = 10
        for name in schedule:
            CALLS[name](group, np.ones(50))
        x = np.full(size, group.rank + 1, np.float32)
        begin = time.monotonic()
        mine = second if group.rank == odd else first
        for turn, name in enumerate([mine, "barrier"]):  # its part of the first may be complete, and right, at once
            try:
                CALLS[name](group, x)
            except MismatchError as error:
                at = time.monotonic()
                assert turn == 1 or (x == group.rank + 1).all(), "an array was changed by a refused call"
                with pytest.raises(MismatchError):
                    group.barrier()
                return begin, at, error.calls
        raise AssertionError(f"told nothing of {first} and {second}")

    told = trial.run(n, body, backend=backend)
    trial.took(max(at for _, at, _ in told) - max(begin for begin, _, _ in told))
    for _, _, calls in told:
        assert sorted(calls) == list(range(n)), calls


@both
@fault(6, "another order", few=1, full=40)
def test_another_order(trial: Trial, backend: str) -> None:
    n = trial.rng.randint(2, 4)
    odd = trial.rng.randrange(n)
    names = trial.rng.sample(["all_reduce", "all_gather", "barrier", "all_to_all", "reduce_scatter", "split"], 4)
    other = trial.rng.sample(names, 4)
    while other == names:
        other = trial.rng.sample(names, 4)

    made = trial.rng.random() < 0.7

    def body(world: Group) -> dict[int, str]:
        group = world.dup() if made else world
        x = np.ones(240)
        try:
            for name in [*(other if group.rank == odd else names), "barrier"]:
                CALLS[name](group, x)
        except MismatchError as error:
            return error.calls
        raise AssertionError("told nothing")

    for calls in trial.run(n, body, backend=backend):
        assert sorted(calls) == list(range(n)), calls
