"""The conformance suite: every operation and scenario on one backend with n ranks.

    report = check_backend("shm", 4)
    print(report.table())
    assert report.ok

Every case runs on every rank and is compared with NumPy there; results that must be equal on all
ranks are then compared between them, bit by bit.
"""

from __future__ import annotations

import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from rankwise.backends.registry import Opener
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.operations import BY_NAME, one_block
from rankwise.contract.ranks import count_of_ranks
from rankwise.contract.types import DType
from rankwise.group.group import Group
from rankwise.testing import arrays, pointer
from rankwise.testing.cases import OPERATIONS, Case, select
from rankwise.testing.oracle import Array
from rankwise.testing.outcome import RanksFailed, run_on, values
from rankwise.testing.ranks import run_ranks
from rankwise.testing.scenarios import SCENARIOS

Run = Callable[[Callable[[Group], Any]], list[Any]]
"""Runs a function on every rank and returns its return values, by rank; raises RanksFailed if it raised."""

SAME_ON_ALL_RANKS = [row.name for row in BY_NAME.values() if row.sends is one_block and row.rooted != "writes"]


class Status(Enum):
    """FAIL: wrong. UNSUPPORTED: the backend cannot do it. PASS: correct. REFUSED: meaningless and refused.

    Where a cell of the table stands for several cases, it shows the first of these that occurs.
    """

    FAIL = "FAIL"
    UNSUPPORTED = "no"
    PASS = "ok"
    REFUSED = "-"


@dataclass(frozen=True)
class Result:
    """The result of a case on one rank or, after `merged`, on all. digest: of the data that the rank received."""

    case: Case
    status: Status
    detail: str = ""
    digest: int = 0


def call(group: Group, level: str, case: Case) -> Array | None:
    """Run a case as one rank. Returns what the rank received; raises AssertionError if that is wrong."""
    if level == "pointer":
        return pointer.body(group.comm, case)
    return arrays.body(group, case)


class CaseError(Exception):
    """A case ended in an unexpected error, and the group has failed. The cause is that error."""


def run_cases(group: Group, level: str, cases: Iterable[Case]) -> list[Result]:
    """Run cases one after the other, as one rank of the group. Every rank passes the same cases."""
    return [_run_case(group, level, case) for case in cases]


def _run_case(group: Group, level: str, case: Case) -> Result:
    try:
        received = call(group, level, case)
    except UnsupportedError as error:
        return Result(case, Status.UNSUPPORTED if case.meaningful else Status.REFUSED, str(error))
    except (TypeError, ValueError) as error:
        return Result(case, Status.FAIL if case.meaningful else Status.REFUSED, f"{type(error).__name__}: {error}")
    except AssertionError as error:
        return Result(case, Status.FAIL, str(error) or traceback.format_exc())
    except Exception as error:
        raise CaseError(str(case)) from error
    if not case.meaningful:
        return Result(case, Status.FAIL, "this meaningless pair of dtype and op was not refused")
    return Result(case, Status.PASS, digest=0 if received is None else zlib.crc32(received.tobytes()))


def merged(by_rank: Sequence[Sequence[Result]]) -> list[Result]:
    """One result for each case: a failure on any rank, else a difference between the ranks, else rank 0's result."""
    results = []
    for on_ranks in zip(*by_rank, strict=True):
        case = on_ranks[0].case
        failed = [f"rank {rank}: {r.detail}" for rank, r in enumerate(on_ranks) if r.status is Status.FAIL]
        if failed:
            results.append(Result(case, Status.FAIL, "; ".join(failed)))
        elif len({r.status for r in on_ranks}) > 1:
            results.append(Result(case, Status.FAIL, f"statuses differ by rank: {[r.status.name for r in on_ranks]}"))
        elif case.operation in SAME_ON_ALL_RANKS and len({r.digest for r in on_ranks}) > 1:
            results.append(Result(case, Status.FAIL, "the ranks received different bits"))
        else:
            results.append(on_ranks[0])
    return results


@dataclass
class Report:
    """The findings of `check_backend`."""

    backend: str
    n: int
    results: dict[str, list[Result]] = field(default_factory=dict)
    """By level."""
    scenarios: dict[str, str] = field(default_factory=dict)
    """The failure of each scenario, or ""."""
    broken: dict[str, str] = field(default_factory=dict)
    """How the group failed, by "level operation"."""

    @property
    def failures(self) -> list[str]:
        """A description of every failure."""
        wrong = [
            f"{level} level, {result.case}: {result.detail}"
            for level, results in self.results.items()
            for result in results
            if result.status is Status.FAIL
        ]
        wrong += [f"{name}: {text}" for name, text in self.broken.items()]
        return wrong + [f"{name}: {text}" for name, text in self.scenarios.items() if text]

    @property
    def ok(self) -> bool:
        return not self.failures

    def table(self) -> str:
        """Tables of operations by dtypes at each level, then the scenarios."""
        lines = [
            f"backend {self.backend}, {count_of_ranks(self.n)}",
            "ok: correct   -: meaningless and refused   no: unsupported by the backend   FAIL: wrong",
        ]
        for level, results in self.results.items():
            dtypes = sorted({result.case.dtype for result in results})
            cells: dict[str, dict[DType, set[Status]]] = {}
            for result in results:
                op = result.case.op
                row = result.case.operation + (f" {op.name.lower()}" if op is not None else "")
                cells.setdefault(row, {}).setdefault(result.case.dtype, set()).add(result.status)
            lines.append(f"\n{level + ' level':22}" + "".join(f"{d.name.lower():>8}" for d in dtypes))
            for row, outcomes in cells.items():
                shown = [next((s.value for s in Status if s in outcomes.get(dtype, ())), "") for dtype in dtypes]
                lines.append(f"{row:22}" + "".join(f"{text:>8}" for text in shown))
        if self.scenarios:
            lines.append("\nscenarios")
            lines += [f"{name:50}{'FAIL' if text else 'ok'}" for name, text in self.scenarios.items()]
        count = sum(len(results) for results in self.results.values())
        lines.append(f"\n{count} cases, {len(self.scenarios)} scenarios, {len(self.failures)} failures")
        return "\n".join(lines)


def check_backend(
    backend: str | Opener,
    n: int,
    *,
    operations: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 60.0,
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Run the whole suite on `n` ranks.

    Args:
        backend: as for `run_ranks`.
        operations: check only these, and no scenarios; if empty, check everything.
        seed: selects other cases.
        timeout: seconds for all cases of one operation.
        progress: called with the name of each part as it begins.
    """
    run = partial(run_ranks, n=n, backend=backend, timeout=timeout)
    return _check(Report(backend if isinstance(backend, str) else backend.__name__, n), run, operations, seed, progress)


def check_group(
    group: Group,
    *,
    operations: Sequence[str] = (),
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Run the suite on the ranks of `group`, which may have been started in any way; all of them call this.

    Every rank returns the report. If a failure leaves the ranks out of step, the group fails and its
    error is reported; the rank where the failure began prints it at once.
    """

    def run(fn: Callable[[Group], Any]) -> list[Any]:
        outcome = run_on(group, fn, (), {})
        if outcome.failure:
            print(f"rank {group.rank}: {outcome.failure}", file=sys.stderr, flush=True)
        return values(group.all_gather_object(outcome, allow_pickle=True))

    return _check(Report(group.backend, group.world_size), run, operations, seed, progress)


def _check(report: Report, run: Run, operations: Sequence[str], seed: int, progress: Callable[[str], None]) -> Report:
    known = {name for names in OPERATIONS.values() for name in names}
    for name in operations:
        if name not in known:
            raise ValueError(f"operations={name!r}: expected some of {', '.join(sorted(known))}")
    for level, names in OPERATIONS.items():
        results = report.results[level] = []
        for name in names:
            if operations and name not in operations:
                continue
            progress(f"{level} {name}")
            try:
                cases = select(name, level, report.n, seed)
                results += merged(run(partial(run_cases, level=level, cases=cases)))
            except RanksFailed as error:
                report.broken[f"{level} {name}"] = str(error)
    for name, scenario in () if operations else SCENARIOS.items():
        progress(name)
        report.scenarios[name] = ""
        try:
            run(scenario)
        except RanksFailed as error:
            report.scenarios[name] = str(error)
    return report
