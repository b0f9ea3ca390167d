"""mypy and pyright read uses.py, which says what they must find."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USES = Path(__file__).with_name("uses.py")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.mark.slow
def test_mypy() -> None:
    done = run("mypy", "--strict", "--python-version", "3.12", str(USES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed; pip install pyright")
def test_pyright(tmp_path: Path) -> None:
    settings = {
        "include": [USES.name],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",
        "pythonVersion": "3.12",
        "extraPaths": [str(ROOT / "src")],
    }
    shutil.copy(USES, tmp_path)  # pyright takes files of the project's folder alone
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    done = run("pyright", "--project", str(project), "--pythonpath", sys.executable, "--outputjson")
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {done.stdout[-200:]} {done.stderr[-200:]}")
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    found = [f"{d['range']['start']['line'] + 1}: {d['message']}" for d in report["generalDiagnostics"]]
    assert not found, "\n".join(found)
