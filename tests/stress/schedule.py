"""Thousands of mixed operations from a seeded schedule.

Every rank makes the same schedule from the seed and checks every result. The memory and the open
descriptors of each rank are sampled meanwhile, and must not grow.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.contract.types import ReduceOp
from rankwise.contract.work import Work
from rankwise.group.group import Group
from rankwise.testing.cases import (
    OPERATIONS,
    REDUCTIONS,
    ROOTED,
    SPLITS,
    TAKES_OUT,
    Case,
    means,
    numpy_dtypes,
)
from rankwise.testing.suite import call

PERIOD = 1000  # operations between two samples of memory and descriptors
BURST = 8  # messages that a rank sends to random ranks in one step


@dataclass(frozen=True)
class Use:
    """The resources that a rank's process holds after a number of operations.

    private: resident memory in bytes, without the shared segment, which never grows.
    """

    operations: int
    private: int
    descriptors: int


def run_schedule(group: Group, operations: int, seed: int) -> list[Use]:
    """Run the schedule of `seed` as one rank. An AssertionError names the step with a wrong byte."""
    rng = random.Random(seed)
    uses = []
    for step in range(operations):
        if rng.random() < 0.1:
            _messages(group, rng.randrange(1 << 30))
        else:
            case, level = _draw(rng, group.world_size, step)
            try:
                call(group, level, case)
            except Exception as error:
                raise RuntimeError(f"step {step} of seed {seed}, {level} level: {case}") from error
        if (step + 1) % PERIOD == 0:
            uses.append(_use(step + 1))
    return uses


def _draw(rng: random.Random, world_size: int, step: int) -> tuple[Case, str]:
    level = rng.choice(("pointer", "array"))
    operation = rng.choice(OPERATIONS[level])
    dtype = rng.choice(sorted(numpy_dtypes()))
    meaningful = [op for op in ReduceOp if means(operation, dtype, op)]
    # Sizes around powers of two, whose exponents are uniform, so that most are small.
    count = max(0, (1 << rng.randrange(13)) + rng.randint(-3, 3))
    if rng.random() < 0.02:
        count *= 16
    shape: tuple[int, ...] = (count,)
    if level == "array" and rng.random() < 0.3:
        shape = (count // 3, 3) if operation in SPLITS or rng.random() < 0.8 else ()
    case = Case(
        operation,
        dtype,
        shape,
        rng.choice(meaningful) if operation in REDUCTIONS else None,
        rng.randrange(world_size) if operation in ROOTED else None,
        out=level == "array" and operation in TAKES_OUT and rng.random() < 0.5,
        strided=level == "array" and rng.random() < 0.3,
        seed=step,
    )
    return case, level


def _messages(group: Group, seed: int) -> None:
    """Every rank sends to random ranks and receives its own messages, while some ranks reduce."""
    rng = random.Random(seed)
    n, me = group.world_size, group.rank
    plan = [
        (rng.randrange(n), rng.randrange(n), rng.randrange(3), rng.choice((0, 1, 9, 300, 20_000))) for _ in range(BURST)
    ]
    works: list[Work[None]] = [
        group.isend(np.full(size, number, np.int64), to, tag)
        for number, (sender, to, tag, size) in enumerate(plan)
        if sender == me
    ]
    if rng.random() < 0.5:
        assert group.all_reduce(1) == n
    for number, (sender, to, tag, size) in enumerate(plan):
        if to == me:
            got = group.recv((size,), sender, tag, dtype=np.int64)
            assert (got == number).all(), f"message {number} of {plan}, seed {seed}: got {got}"
    for work in works:
        work.wait()


def _use(operations: int) -> Use:
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # returns free memory to the system, so that only memory in use is counted
    status = Path("/proc/self/status").read_text()
    private = int(status.split("RssAnon:")[1].split()[0]) * 1024
    return Use(operations, private, len(os.listdir("/proc/self/fd")))
