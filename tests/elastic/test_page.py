"""The program of docs/how-to/recovery.md runs, and its command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "recovery.md"


def test_the_program_of_the_page(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"```bash\n(rankwise .*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "100 steps, 100 losses, weights -50.5\n" * 4
