"""What /proc shows of processes and of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.system import proc


def test_a_process_whose_name_looks_like_fields(tmp_path: Path) -> None:
    python = tmp_path / "a) Z 1 ("
    python.symlink_to(sys.executable)
    command = [python, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"A": "b=c", "É": "é"}) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        fields = proc.stat(child.pid)
        assert (fields[proc.STATE] in "SRD", fields[proc.PARENT]) == (True, str(os.getpid()))
        assert int(fields[proc.START_TIME]) >= int(proc.stat(os.getpid())[proc.START_TIME])
        assert proc.environment(child.pid) == {"A": "b=c", "É": "é"}
        child.stdin.close()
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on how far the process has gone
        proc.stat(child.pid)


def test_fields(tmp_path: Path) -> None:
    file = tmp_path / "status"
    file.write_text("Name:\tpython: x\nNSpid:\t12\t1\nmodel name\t: CPU\n")
    assert proc.fields(str(file)) == {"Name": "python: x", "NSpid": "12\t1", "model name": "CPU"}
    assert proc.fields(str(file), 15) == {"Name": "python: x"}
