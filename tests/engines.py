"""The conformance suite, one operation at a time; on engines other than shm, threads and solo only a part of it."""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

from rankwise.testing import run_ranks
from rankwise.testing.cases import REDUCTIONS, Case, numpy_dtypes, select
from rankwise.testing.suite import Result, Status, merged, run_cases

FULL = os.environ.get("RANKWISE_ENGINES") == "full"
"""Whether all of it, every dtype with every op; `make test-all PART=engines` sets the variable."""


def check_operation(
    operation: str, level: str, n: int, backend: Any, *, timeout: float = 60.0, every_pair: bool = True
) -> list[Result]:
    """Run the cases of one operation on n ranks. Raises RanksFailed if a case fails the group.

    every_pair: of a dtype and an op; otherwise each dtype and each op at least once, in a pair that has a meaning.
    """
    cases = select(operation, level, n)
    if operation in REDUCTIONS and not every_pair:
        cases = some_pairs(cases)
    return merged(run_ranks(partial(run_cases, level=level, cases=cases), n, backend=backend, timeout=timeout))


def some_pairs(cases: list[Case]) -> list[Case]:
    """Of a reduction's cases, which begin with one for each pair."""
    pairs = len(numpy_dtypes()) * len({case.op for case in cases})
    meant = [case for case in cases[:pairs] if case.meaningful]
    random.Random(cases[0].operation).shuffle(meant)
    of_dtype, of_op = {case.dtype: case for case in meant}, {case.op: case for case in meant}
    return [*of_dtype.values(), *of_op.values(), *cases[pairs:]]


def conforms(operation: str, level: str, n: int, backend: Any, timeout: float = 60.0) -> None:
    """Every dtype and every op of this operation are right, and the sizes at which algorithms change."""
    results = check_operation(operation, level, n, backend, timeout=timeout, every_pair=FULL)
    wrong = [f"{r.case}: {r.detail}" for r in results if r.status not in (Status.PASS, Status.REFUSED)]
    assert not wrong, f"{len(wrong)} of {len(results)} cases:\n" + "\n".join(wrong[:10])
