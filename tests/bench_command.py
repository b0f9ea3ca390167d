"""`rankwise bench` as the tests run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

QUICK = ("--time", "0.01")


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})


def report_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document
