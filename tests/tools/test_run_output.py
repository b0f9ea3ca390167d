"""`rankwise run` passes on every byte of every rank, in whole lines, and at once on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rankwise._native import usable_cores

RUN = [sys.executable, "-m", "rankwise", "run"]


@pytest.mark.parametrize("tagged", [False, True])
def test_lines_of_eight_ranks_stay_whole(tagged: bool) -> None:
    code = """
import os, sys
rank = os.environ["RANKWISE_RANK"]
for i in range(10_000):
    print("rank", rank, i, "x" * (i % 300), file=sys.stderr if i % 10 == 0 else sys.stdout)
"""
    words = ["--tag-output"] if tagged else []
    done = subprocess.run([*RUN, "-n", "8", *words, "python", "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0
    for text, own in ((done.stdout, lambda i: i % 10 != 0), (done.stderr, lambda i: i % 10 == 0)):
        seen: Counter[str] = Counter()
        expected = [i for i in range(10_000) if own(i)]
        for line in text.splitlines():
            rank = line.removeprefix("[")[0] if tagged else line.split()[1]
            i = expected[seen[rank]]
            assert line == f"[{rank}] " * tagged + f"rank {rank} {i} " + "x" * (i % 300)
            seen[rank] += 1
        assert seen == {str(rank): len(expected) for rank in range(8)}


def test_a_slow_line_is_not_torn() -> None:
    script = "for i in 1 2 3; do printf a; sleep 0.15; printf 'b\\n'; done"
    done = subprocess.run([*RUN, "-n", "4", "sh", "-c", script], capture_output=True, text=True, timeout=150)
    assert done.stdout == "ab\n" * 12


def test_bytes_pass_unchanged_and_streams_stay_separate() -> None:
    data = bytes(range(256)) * 300
    code = (
        "import sys; data = bytes(range(256)) * 300; sys.stdout.buffer.write(data); sys.stderr.buffer.write(data[::-1])"
    )
    done = subprocess.run([*RUN, "-n", "1", "python", "-c", code], capture_output=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, data[::-1])


def test_bytes_of_very_long_lines_pass_unchanged() -> None:
    """Each rank writes a line of 12 MB and others, all at once."""
    code = """
import os, sys
rank = os.environ["RANKWISE_RANK"].encode()
for n in (1, 12_000_000, 3):
    sys.stdout.buffer.write(rank * n + b"\\n")
    sys.stdout.flush()
"""
    done = subprocess.run([*RUN, "-n", "2", "python", "-c", code], capture_output=True, timeout=100)
    lines = done.stdout.split(b"\n")
    assert sorted(map(len, lines)) == [0, 1, 1, 3, 3, 12_000_000, 12_000_000]
    assert all(len(set(line)) == 1 for line in lines[:-1])


def test_an_incomplete_last_line_is_shown_on_its_own() -> None:
    done = subprocess.run([*RUN, "-n", "3", "--tag-output", "printf", "a\nb"], capture_output=True, timeout=150)
    assert sorted(done.stdout.split(b"\n")) == [b"[0] a", b"[0] b", b"[1] a", b"[1] b", b"[2] a", b"[2] b"]


def test_lines_appear_while_the_program_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time; print('now')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    launcher = subprocess.Popen([*RUN, "-n", "2", "python", "-c", code], stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    assert [launcher.stdout.readline() for _ in range(2)] == [b"now\n"] * 2
    assert launcher.poll() is None
    go.touch()
    assert launcher.communicate(timeout=100)[0] == b""
    assert launcher.returncode == 0


def test_on_a_terminal_a_progress_bar_moves_and_lines_appear_above_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
import os, sys, time
def wait(name):
    while not os.path.exists({str(tmp_path)!r} + "/" + name): time.sleep(0.01)
if os.environ["RANKWISE_RANK"] == "0":
    for step in ("10%", "50%"):
        sys.stderr.write("\\r" + step); time.sleep(0.05)
    wait("done")
    sys.stderr.write("\\r100%\\n")
else:
    wait("go")
    print("a line of rank 1")
"""
    screen, terminal = pty.openpty()
    launcher = subprocess.Popen([*RUN, "-n", "2", "python", "-c", code], stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 20
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([screen], [], [], 1)[0]:
                seen += os.read(screen, 4096)

    try:
        read_until(b"\r10%\r50%")
        go.touch()
        read_until(b"\r\x1b[Ka line of rank 1\r\n50%")
        (tmp_path / "done").touch()
        read_until(b"\r100%\r\n")
        assert launcher.wait(timeout=100) == 0
    finally:
        launcher.kill()
        launcher.wait()
        os.close(screen)


def test_ranks_have_no_controlling_terminal() -> None:
    code = """
import os
try:
    os.close(os.open("/dev/tty", os.O_RDWR))  # who reads from it in the background is stopped
    print("has one")
except OSError:
    print("has none")
"""
    screen, terminal = pty.openpty()
    n = usable_cores() + 1  # ranks that share cores are of the terminal's session
    launcher = ["setsid", "--ctty", *RUN, "-n", str(n), "python", "-c", code]
    done = subprocess.run(launcher, stdin=terminal, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(terminal)
    os.close(screen)
    assert (done.stdout, done.returncode) == ("has none\n" * n, 0)
