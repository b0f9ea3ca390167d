"""Random programs over the public interface give what the oracle says. `make test-all PART=random` runs new ones.

The programs here are always the same; another seed: `RANKWISE_RANDOM_SEED=123 pytest tests/random_programs`.
"""

from __future__ import annotations

import os

import pytest

from random_programs import run
from random_programs.generator import Style, draw
from random_programs.program import Collective, How, Program
from rankwise import Group

SEED = int(os.environ.get("RANKWISE_RANDOM_SEED", "20240229"))
QUICK = {"threads": 40, "shm": 25, "gloo": 4}  # how many


@pytest.mark.parametrize("world", QUICK)
def test_programs(world: str) -> None:
    if world == "gloo":
        pytest.importorskip("torch", reason="gloo comes with torch")
    n = {"threads": None, "shm": 3, "gloo": 2}[world]  # processes are kept for the next program, and other tests
    for seed in range(SEED, SEED + QUICK[world]):
        check(world, draw(seed, run.WORLDS[world].style, n))


@pytest.mark.parametrize("kind", run.FAULTS)
def test_a_fault(kind: str) -> None:
    check("faults", draw(SEED, Style(faults=(kind,), steps=15), 3))


def check(world: str, program: Program) -> None:
    print(program, run.repeats(world, program), sep="\n")
    run.WORLDS[world].run([program])


def test_shortening_leaves_what_fails() -> None:
    program = draw(SEED, Style(), 2)
    steps = list(program.steps())
    culprits = {steps[len(steps) // 3].number, steps[-1].number}

    def fails(programs: list[Program]) -> None:
        if culprits <= {step.number for step in programs[0].steps()}:
            raise run.Failed(programs[0], "as ever")

    shorter = run.shortened(run.World(Style(), fails), program, tries=1)
    kept = {step.number for step in shorter.steps()}
    makers = {step.group for step in shorter.steps()}
    assert culprits <= kept <= culprits | makers | {step.group for step in steps if step.number in makers}


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Collective(0, -1, (How(), How()), "all_reduce", "int32", (3,), "sum")
    program = Program(SEED, 2, ((step,),))
    run.on_ranks("threads", [program])
    monkeypatch.setattr(Group, "all_reduce", lambda group, x, **how: x)
    with pytest.raises(run.Failed, match="3 of 3 elements differ"):
        run.on_ranks("threads", [program])
