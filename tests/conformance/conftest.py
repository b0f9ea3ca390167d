"""The rank processes that run_ranks keeps end with each test file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwise.testing import close_pools


@pytest.fixture(scope="module", autouse=True)
def pools() -> Iterator[None]:
    yield
    close_pools()
