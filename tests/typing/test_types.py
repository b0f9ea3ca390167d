"""mypy and pyright check uses.py, which says what they must find, and the Python snippets of the documents."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USES = Path(__file__).with_name("uses.py")
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "spec" not in p.parts),
]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    python = [sys.executable, "-m", *command]
    return subprocess.run(python, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each block of Python in the documents, as a file."""
    folder = tmp_path_factory.mktemp("snippets")
    files = []
    for document in DOCUMENTS:
        text = document.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if "from mpi4py" in block[1]:
                continue  # mpi4py is not installed here
            files.append(folder / f"{document.stem}_line_{text.count(chr(10), 0, block.start()) + 1}.py")
            files[-1].write_text(block[1])
    assert len(files) > 8
    return files


def test_mypy(tmp_path: Path) -> None:
    """Without torch's own types, which take most of the time; `make lint` checks the file with them."""
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n[mypy-torch.*]\nfollow_imports = skip\n")
    done = run("mypy", "--config-file", str(settings), str(USES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_on_the_documents_snippets(snippets: list[Path]) -> None:
    # Without the project's own strictness: readers leave their functions untyped.
    done = run("mypy", "--config-file=", "--check-untyped-defs", "--follow-imports=silent", *map(str, snippets))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed; pip install pyright")
def test_pyright(tmp_path: Path) -> None:
    shutil.copy(USES, tmp_path)  # pyright takes files of the project's folder alone
    check_by_pyright(tmp_path, [tmp_path / USES.name])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed; pip install pyright")
def test_pyright_on_the_documents_snippets(snippets: list[Path]) -> None:
    check_by_pyright(snippets[0].parent, snippets)


def check_by_pyright(folder: Path, files: list[Path]) -> None:
    settings = {
        "include": [file.name for file in files],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "reportUnusedExpression": "none",
        "pythonVersion": "3.12",
        "extraPaths": [str(ROOT / "src")],
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    done = run("pyright", "--project", str(project), "--pythonpath", sys.executable, "--outputjson")
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {done.stdout[-200:]} {done.stderr[-200:]}")
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    found = [
        f"{Path(d['file']).name}:{d['range']['start']['line'] + 1}: {d['message']}"
        for d in report["generalDiagnostics"]
    ]
    assert not found, "\n".join(found)
