"""`rankwise run`: the programs it runs, their environment, and its errors for bad arguments."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from in_process import rankwise
from rankwise._native import usable_cores
from rankwise.system import proc
from rankwise.tools.run import _children


def run(
    *words: str, cwd: Path | None = None, stdin: bytes | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankwise", "run", *words],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=cwd,
        input=None if stdin is None else stdin.decode(),
        env={**os.environ, **env},
    )


@pytest.mark.parametrize("n", [1, 4, pytest.param(16, marks=pytest.mark.slow)])
def test_a_collective_program(n: int) -> None:
    code = "import numpy as np, rankwise as rw; g = rw.init(); print(g.rank, g.all_reduce(np.ones(3))[0])"
    done = run("-n", str(n), "python", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(f"{rank} {float(n)}" for rank in range(n))


def test_a_file_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text("import sys; print(sys.argv)")
    done = run("-n", "2", "prog.py", "-n", "5", "--timeout", "-m", "--", "x", cwd=tmp_path)
    assert done.stdout == "['prog.py', '-n', '5', '--timeout', '-m', '--', 'x']\n" * 2


def test_a_module_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "prog.py").write_text("import sys; print(sys.argv[1:])")
    done = run("-n", "2", "--tag-output", "-m", "pkg.prog", "--help", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["[0] ['--help']", "[1] ['--help']"]


@pytest.mark.parametrize("dashes", [["--"], []])
def test_a_command(dashes: list[str]) -> None:
    done = run("-n3", *dashes, "sh", "-c", "echo $RANKWISE_RANK of $RANKWISE_WORLD_SIZE")
    assert sorted(done.stdout.splitlines()) == ["0 of 3", "1 of 3", "2 of 3"]


def test_python_is_the_interpreter_of_rankwise() -> None:
    done = run("-n", "1", "python", "-c", "import sys; print(sys.executable)", PATH="/usr/bin:/bin")
    assert done.stdout.strip() == sys.executable


def test_the_environment_of_the_ranks() -> None:
    show = "import os; print({k: v for k, v in os.environ.items() if k in ('OMP_NUM_THREADS', 'RANKWISE_BACKEND')}, \
os.environ.get('RANKWISE_TIMEOUT'), os.environ['RANKWISE_LAUNCHER_PID'] == str(os.getppid()))"
    threads = {"OMP_NUM_THREADS": str(max(1, usable_cores() // 2))}
    assert run("-n", "2", "python", "-c", show, RANKWISE_TIMEOUT="9").stdout == f"{threads} 9 True\n" * 2
    done = run("-n", "1", "--timeout", "2.5", "--backend", "shm", "python", "-c", show, OMP_NUM_THREADS="7")
    expected = {"OMP_NUM_THREADS": "7", "RANKWISE_BACKEND": "shm"}
    shown, _, rest = done.stdout.partition("} ")
    assert (eval(shown + "}"), rest) == (expected, "2.5 True\n")


def test_rank_0_has_standard_input_and_the_others_have_none() -> None:
    done = run("-n", "3", "--tag-output", "cat", stdin=b"one\ntwo\n")
    assert done.stdout == "[0] one\n[0] two\n"


def test_another_rank_may_have_standard_input(capfd: pytest.CaptureFixture[str]) -> None:
    done = run("-n", "3", "--tag-output", "--stdin", "2", "cat", stdin=b"one\n")
    assert done.stdout == "[2] one\n"
    done = run("-n", "2", "--stdin", "none", "cat", stdin=b"one\n")
    assert (done.returncode, done.stdout) == (0, "")
    for rank, why in (("2", "--stdin 2: expected a rank, 0 to 1,"), ("x", "expected a rank, all, or none, got 'x'")):
        assert why in rankwise(capfd, "run", "-n", "2", "--stdin", rank, "cat").stderr


@pytest.mark.parametrize("source", ["pipe", "file"])
def test_each_rank_may_have_a_copy_of_standard_input(tmp_path: Path, source: str) -> None:
    """Rank 1 reads nothing until the others have read more than a pipe holds; rank 2 never does."""
    text = "".join(f"line {i} of many\n" for i in range(20000))
    (tmp_path / "input").write_text(text)
    script = f"""
case $RANKWISE_RANK in 1) until [ -s {tmp_path}/0 ]; do sleep 0.05; done;; 2) exit;; esac
cat > {tmp_path}/part$RANKWISE_RANK; mv {tmp_path}/part$RANKWISE_RANK {tmp_path}/$RANKWISE_RANK
"""
    words = [sys.executable, "-m", "rankwise", "run", "-n", "3", "--stdin", "all", "sh", "-c", script]
    with (tmp_path / "input").open() as file:
        given: dict[str, Any] = {"stdin": file} if source == "file" else {"input": text}
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, **given)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(tmp_path / name).read_text() == text for name in "01"] == [True, True]


def test_each_rank_has_a_file_of_its_output(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "logs"
    show = "echo out $RANKWISE_RANK; echo err $RANKWISE_RANK >&2"
    for _ in range(2):  # the second job's files replace the first one's
        done = run("-n", "2", "--output-dir", str(folder), "sh", "-c", show)
        assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
        for rank in range(2):
            assert sorted((folder / f"rank-{rank}.txt").read_text().splitlines()) == [f"err {rank}", f"out {rank}"]
    (tmp_path / "file").touch()
    done = run("-n", "2", "--output-dir", str(tmp_path / "file"), "true")
    assert (done.returncode, "expected a folder to write to: [Errno 17] File exists" in done.stderr) == (2, True)
    (folder / "rank-1.txt").unlink()
    (folder / "rank-1.txt").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("kept")
    done = run("-n", "2", "--output-dir", str(folder), "sh", "-c", show)
    assert (done.returncode, "rank-1.txt" in done.stderr) == (2, True)
    assert (tmp_path / "precious").read_text() == "kept"


def test_processes_that_proc_hides_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc is mounted with hidepid=1."""
    stat = proc.stat

    def visible(pid: int) -> list[str]:
        if pid == 1:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return stat(pid)

    monkeypatch.setattr(proc, "stat", visible)
    with subprocess.Popen(["sleep", "100"]) as child:
        assert child.pid in _children()
        child.kill()


@pytest.mark.slow
def test_the_timeout_reaches_the_operations() -> None:
    code = "import time, rankwise as rw; g = rw.init(); time.sleep(20 * g.rank); g.barrier()"
    done = run("-n", "2", "--timeout", "2", "python", "-c", code)
    assert done.returncode == 1
    assert "CollectiveTimeout" in done.stderr
    # Rank 0's barrier; but it may be that the ranks do not even meet.
    assert re.match(r"rankwise: rank [01] ", done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-n", "0", "true"], 2, "argument -n/--nproc-per-node: expected a number of ranks of at least 1, got '0'"),
        (["-n", "-2", "true"], 2, "at least 1, got '-2'"),
        (["-n", "1025", "true"], 2, "expected at most 1024, as many as one host can have, got '1025'"),
        (["-n", "99999999999", "true"], 2, "at most 1024, as many as one host can have, got '99999999999'"),
        (["-n", "two", "true"], 2, "at least 1, got 'two'"),
        (["-n", "1.5", "true"], 2, "at least 1, got '1.5'"),
        (["true"], 2, "-n"),
        (["-n", "2"], 2, "nothing to run: expected a Python file"),
        (["-n", "2", "--"], 2, "nothing to run: expected a Python file"),
        (["-n", "2", "-m"], 2, "-m: expected the name of a module"),
        (["-n", "2", "--fast", "true"], 2, "--fast"),
        (["-n", "2", "--timeout", "0", "true"], 2, "--timeout: expected a number of seconds above 0 and at "),
        (["-n", "2", "--timeout", "soon", "true"], 2, "got 'soon'"),
        (["-n", "2", "--timeout", "nan", "true"], 2, "got 'nan'"),
        (["-n", "2", "--backend", "warp", "true"], 2, "backend='warp': expected one of"),
        (["-n", "2", "nowhere.py"], 127, "program not found: nowhere.py"),
        (["-n", "2", "./nowhere"], 127, "program not found: ./nowhere"),
        (["-n", "2", "nowhere-to-be-found"], 127, "program not found: nowhere-to-be-found"),
        (["-n", "2", "--", "nowhere-to-be-found"], 127, "program not found: nowhere-to-be-found"),
        (["-n", "2", "-m", "nowhere.found"], 127, "module not found: nowhere.found"),
        (["-n", "2", "here.txt"], 2, "cannot run here.txt: expected a file ending in .py or .tcl"),
        (["-n", "2", "./here.txt"], 2, "cannot run ./here.txt"),
        (["-n", "2", "there"], 127, "./there is the file here"),
        (["-n", "100000", "true"], 2, "100000"),
    ],
)
def test_bad_words_are_an_error_of_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.txt").write_text("text")
    Path("there").touch(0o755)
    assert_refused(rankwise(capfd, "run", *words), code, told)


def test_a_file_that_is_no_program_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "noexec").write_bytes(b"\x00\x01 no program")
    (tmp_path / "noexec").chmod(0o755)
    assert_refused(run("-n", "2", "./noexec", cwd=tmp_path), 2, "./noexec")


def assert_refused(done: subprocess.CompletedProcess[str], code: int, told: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("rankwise run: error: ")
    assert told in done.stderr
