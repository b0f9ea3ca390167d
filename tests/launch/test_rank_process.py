"""How the launcher notices that a rank's process has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seccomp import NUMBERS

TESTS = Path(__file__).resolve().parents[1]

WITHOUT_PIDFDS = f"import sys; sys.path.insert(0, {str(TESTS)!r}); import seccomp; seccomp.forbid('pidfd_open'); "


@pytest.mark.skipif(not NUMBERS, reason="the numbers of this machine's system calls are not in seccomp.py")
def test_a_launcher_without_pidfds_notices_how_its_ranks_end() -> None:
    """As in a container whose seccomp profile forbids pidfd_open."""
    program = "import os; print('started'); os._exit(7 * (os.environ['RANKWISE_RESTART'] == '0'))"
    code = WITHOUT_PIDFDS + "from rankwise.tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "-n", "2", "--restarts", "1", "python", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, 4 * "started\n"), done.stderr
    assert done.stderr.count("exited with status 7; started again (restart 1 of 1)") == 2
    assert done.stderr.endswith("rankwise: finished; started again: rank 0, rank 1\n")


@pytest.mark.skipif(not NUMBERS, reason="the numbers of this machine's system calls are not in seccomp.py")
def test_spawn_without_pidfds() -> None:
    code = WITHOUT_PIDFDS + "import rankwise as rw; print(rw.spawn(divmod, 2, 7, 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("[(3, 1), (3, 1)]\n", "")
