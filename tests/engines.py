"""The conformance suite on engines other than shm, threads and solo, on which tests/conformance runs all of it."""

from __future__ import annotations

import os
from typing import Any

from rankwise.testing.suite import Status, check_operation

FULL = os.environ.get("RANKWISE_ENGINES") == "full"
"""Whether all of it, every dtype with every op; `make test-all PART=engines` sets the variable."""


def conforms(operation: str, level: str, n: int, backend: Any, timeout: float = 60.0) -> None:
    """Every dtype and every op of this operation are right, and the sizes at which algorithms change."""
    results = check_operation(operation, level, n, backend, timeout=timeout, every_pair=FULL)
    wrong = [f"{r.case}: {r.detail}" for r in results if r.status not in (Status.PASS, Status.REFUSED)]
    assert not wrong, f"{len(wrong)} of {len(results)} cases:\n" + "\n".join(wrong[:10])
