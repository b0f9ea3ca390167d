"""The rank processes that run_ranks keeps end with each test file; a table of what was covered ends the run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest

from rankwise.testing import close_pools
from rankwise.testing.cases import numpy_dtypes
from rankwise.testing.suite import Result, Status

Covered = dict[tuple[str, str], Counter[tuple[str, str]]]  # (backend, level) -> (operation, dtype) -> cases
COVERED = pytest.StashKey[Covered]()


@pytest.fixture(scope="module", autouse=True)
def pools() -> Iterator[None]:
    yield
    close_pools()


@pytest.fixture
def covers(request: pytest.FixtureRequest) -> Callable[[str, str, list[Result]], None]:
    """Counts the cases that were right, for the table: covers(backend, level, results)."""
    covered = request.config.stash.setdefault(COVERED, defaultdict(Counter))

    def count(backend: str, level: str, results: list[Result]) -> None:
        right = [result.case for result in results if result.status is Status.PASS]
        covered[backend, level].update((case.operation, case.dtype.name.lower()) for case in right)

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    dtypes = [dtype.name.lower() for dtype in sorted(numpy_dtypes())]
    for (backend, level), cases in config.stash.get(COVERED, {}).items():
        terminalreporter.section(f"conformance of {backend}, {level} level: cases that were right")
        terminalreporter.line(f"{'':17}" + "".join(f"{name:>8}" for name in dtypes))
        for operation in dict.fromkeys(operation for operation, _ in cases):
            cells = "".join(f"{cases[operation, name]:>8}" for name in dtypes)
            terminalreporter.line(f"{operation:17}{cells}")
