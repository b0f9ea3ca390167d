"""Every operation, at both levels, on every backend and world size: the cases of rankwise.testing.cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engines import check_operation
from rankwise.testing.cases import OPERATIONS
from rankwise.testing.suite import Status

WORLDS = [("solo", 1), *((backend, n) for backend in ("threads", "shm") for n in (1, 2, 3, 4, 7))]
QUICK = [("solo", 1), ("threads", 3), ("shm", 4)]  # the others are left to make test-all


@pytest.mark.parametrize(
    ("backend", "n", "level", "operation"),
    [
        pytest.param(*world, level, name, marks=() if world in QUICK else pytest.mark.slow)
        for world in WORLDS
        for level, names in OPERATIONS.items()
        for name in names
    ],
)
def test_operation(backend: str, n: int, level: str, operation: str, covers: Callable[..., None]) -> None:
    results = check_operation(operation, level, n, backend)
    covers(backend, level, results)
    wrong = [f"{r.case}: {r.status.name} {r.detail}" for r in results if r.status not in (Status.PASS, Status.REFUSED)]
    assert not wrong, f"{len(wrong)} of {len(results)} cases:\n" + "\n".join(wrong[:10])
