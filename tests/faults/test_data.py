"""Odd arrays, arguments and numbers, on ranks drawn at random."""

from __future__ import annotations

import pytest

from array_level import arguments, memory
from faults.trials import Trial, fault
from rankwise.testing.scenarios import numerics, scenarios_of

both = pytest.mark.parametrize("backend", ["threads", "shm"])


@both
@fault(13, "odd arrays and arguments", few=1, full=60)
def test_odd_arrays(trial: Trial, backend: str) -> None:
    name, scenario = trial.rng.choice([*scenarios_of(memory, arguments).items()])
    print(name)
    trial.run(trial.rng.randint(2, 5), scenario, backend=backend, timeout=60)


@both
@fault(14, "odd numbers", few=1, full=40)
def test_odd_numbers(trial: Trial, backend: str) -> None:
    name, scenario = trial.rng.choice([*scenarios_of(numerics).items()])
    print(name)
    trial.run(trial.rng.randint(2, 5), scenario, backend=backend, timeout=60)


@pytest.mark.slow  # 12 s
@fault(14, "sums of many ranks in narrow types", few=1, full=5)
def test_many_terms(trial: Trial) -> None:
    trial.run(trial.rng.randint(32, 64), numerics.random_reals, timeout=100)
