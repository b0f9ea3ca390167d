"""What a job's description says: whether its ranks are on one host, and which backend suits it."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.contract.job import Job


@pytest.mark.parametrize(
    ("job", "one_host", "backend"),
    [
        ({}, True, "solo"),
        ({"segment_fd": 7}, True, "shm"),
        ({"world_size": 4, "local_world_size": 4}, True, "shm"),
        ({"world_size": 4, "local_world_size": 4, "master": ("host-a", 1)}, True, "shm"),
        ({"world_size": 4, "local_world_size": 2}, False, "hierarchical"),
        ({"world_size": 4, "local_world_size": 2, "master": ("127.0.0.1", 1)}, False, "hierarchical"),
        ({"world_size": 4, "local_world_size": None}, True, "shm"),
        ({"world_size": 4, "local_world_size": None, "master": ("localhost", 1)}, True, "shm"),
        ({"world_size": 4, "local_world_size": None, "master": ("127.0.1.1", 1)}, True, "shm"),
        ({"world_size": 4, "local_world_size": None, "master": ("host-a", 1)}, False, "hierarchical"),
    ],
)
def test_the_hosts_and_the_default_backend(job: dict[str, Any], one_host: bool, backend: str) -> None:
    assert Job(**job).one_host is one_host
    assert Job(**job).default_backend == backend
