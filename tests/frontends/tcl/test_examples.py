"""The Tcl examples: the same numbers on every number of ranks, and each pattern's output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("either_host")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
RANKWISE = [sys.executable, "-m", "rankwise"]


def lines(n: int, name: str, *words: str) -> list[str]:
    start = ["tclsh"] if n == 1 else ["run", "-n", str(n)]
    command = [*RANKWISE, *start, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(2,), (3, 4)])
def test_digits_has_the_same_accuracy_on_every_number_of_ranks(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    pytest.importorskip("sklearn")
    alone = lines(1, "digits.tcl", str(tmp_path), "8")
    accuracy = re.fullmatch(r"test accuracy (\S+) % \(\d+ of 360\)", alone[-1])
    assert accuracy is not None
    assert float(accuracy[1]) > 94
    for n in ranks:
        several = lines(n, "digits.tcl", str(tmp_path), "8")
        assert f"{n} ranks" in several[0]
        assert several[1].startswith("matches the one-rank run: largest loss difference ")
        assert several[2:] == alone[1:]


@pytest.mark.parametrize("n", [1, 4])
def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said = lines(n, "patterns.tcl")
    squares = " ".join(f"{float(number**2)}" for number in range(2 * n))
    assert f"scatter and gather: the squares {squares}, shape {n} 2" in said
    assert f"data loading: all {n} parts are there, and their mean is that of the file" in said
    assert f"checkpoint: 192 bytes, restored on {n} ranks, {8.0 * n} in total" in said
    waits = [re.fullmatch(r"profiling: rank (\d) worked (\d+) ms and waited (\d+) ms", line) for line in said]
    numbers = [tuple(map(int, found.groups())) for found in waits if found is not None]
    assert [rank for rank, _, _ in numbers] == list(range(n))
    if n > 1:
        assert numbers[0][1] + numbers[0][2] >= 40  # rank 0 works 20 ms and waits for those that work up to 80
    assert list(tmp_path.iterdir()) == []
