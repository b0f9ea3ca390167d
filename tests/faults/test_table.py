"""Faults between hosts: who raises what, and whom the errors name, the same on every backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LATE: list[Any] = ["CollectiveTimeout", 3]
LOST: list[Any] = ["PeerLostError", 3]
STORE: list[Any] = ["PeerLostError", 0]  # which serves the store, unless torchrun does
LEFT: list[Any] = [*LOST, 3]
EXPECTED: dict[str, list[list[Any]]] = {
    "death, found in a collective": [LEFT] * 3,
    "death, found in a message": [LEFT] * 3,
    "death, found in a probe": [LEFT] * 3,
    "death, found by receives from any rank": [LEFT] * 3,
    "death, found by receives of any length": [LEFT] * 3,
    "death of the store, found by a counter": [STORE] * 4,
    "death of the store, found by a lock": [STORE] * 4,
    "store that is stopped, found by a counter": [STORE] * 4,
    "store that cannot be reached": [["CollectiveTimeout", 0]] * 4,
    "exception in a collective": [LOST] * 4,
    "group that a rank closes too early, found by a receive": [LOST, LOST, LOST, []],
    "group that a rank closes too early, found by a send": [LOST, LOST, LOST, []],
    "message that does not come": [LATE, LATE, [], []],
}
"""By fault and rank: the error, whom it names, and after a death how many ranks go on."""

COLUMNS = {backend: [f"{backend}/{fault}" for fault in EXPECTED] for backend in ("shm", "gloo", "hierarchical")}
COLUMNS["shm"] = [cell for cell in COLUMNS["shm"] if "store" not in cell and "exception" not in cell]
"""There is no store. tests/group/test_interrupts.py has the exceptions."""

SOME = [
    "gloo/death, found by receives from any rank",
    "gloo/message that does not come",
    "gloo/death of the store, found by a counter",
    "hierarchical/death, found in a message",
    "hierarchical/exception in a collective",
]


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(SOME, id="some"),
        *(pytest.param(cells, id=backend, marks=pytest.mark.slow) for backend, cells in COLUMNS.items()),
    ],
)
def test_every_rank_learns_of_the_fault_and_names_who_is_to_blame(cells: list[str]) -> None:
    pytest.importorskip("torch")
    program = Path(__file__).with_name("cells.py")
    command = [sys.executable, str(program), *cells]
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch shows C++ stacks of lost connections
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=220, check=False)
    found = dict(zip(cells, map(json.loads, ran.stdout.splitlines()), strict=False))
    assert found == {cell: EXPECTED[cell.partition("/")[2]] for cell in cells}, ran.stderr
