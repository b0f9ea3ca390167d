"""The tools in 80 columns: no line is longer, and no word and no option's name is divided."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from in_process import rankwise
from rankwise.tools.bench.report import Machine
from rankwise.tools.cli import COMMANDS
from rankwise.tools.layout import columns, fill, one_line, width

RANKWISE = [sys.executable, "-m", "rankwise"]
WIDTH = 80
HELP = [[], *([name] for name in COMMANDS)]

# Rank 0 waits for its standard input to end, the others for rank 0; the arguments make a long command line.
PROGRAM = "import sys, rankwise as rw; g = rw.init(); g.barrier(); g.rank or sys.stdin.read(); g.barrier()"
LONG = [f"--an-option-of-the-program={number}" for number in range(40)]


def in_pipe(*words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [*RANKWISE, *words], env=environment, capture_output=True, text=True, timeout=150, check=True
    ).stdout


def in_terminal(*words: str, columns: int = WIDTH) -> str:
    """What the command prints on a terminal of 80 columns."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = subprocess.Popen(
        [*RANKWISE, *words], stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
    )
    os.close(inner)
    screen = b""
    with suppress(OSError):  # which says that the command has ended
        while data := os.read(outer, 65536):
            screen += data
    os.close(outer)
    assert command.wait(60) == 0, screen
    return screen.decode().replace("\r\n", "\n")


def assert_fits(text: str, columns: int = WIDTH) -> None:
    assert [line for line in text.splitlines() if len(line) > columns] == []


def words_of(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize("words", HELP, ids=lambda words: " ".join(words) or "rankwise")
def test_help_fits_and_divides_no_word(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    narrow = rankwise(capfd, *words, "--help").stdout
    monkeypatch.setenv("COLUMNS", "300")
    wide = rankwise(capfd, *words, "--help").stdout
    assert narrow
    assert_fits(narrow)
    assert_fits(wide, 100)
    assert words_of(narrow) == words_of(wide)


def test_help_is_as_wide_as_the_terminal() -> None:
    for wide in (80, 70):
        text = in_terminal("status", "--help", columns=wide)
        assert_fits(text, wide)
        assert any(len(line) > wide - 12 for line in text.splitlines())
    assert words_of(in_terminal("status", "--help")) == words_of(in_pipe("status", "--help"))


@pytest.mark.parametrize("n", [2, 8])
def test_status_fits(n: int) -> None:
    launcher = subprocess.Popen(
        [*RANKWISE, "run", "-n", str(n), "--timeout", "100", "python", "-c", PROGRAM, *LONG], stdin=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 60
        text = ""
        while text.count("in barrier #2") < n - 1 or "others wait for it" not in text:
            assert time.monotonic() < end, text
            text = in_pipe_or_empty("status", str(launcher.pid))
        lines = text.splitlines()
        assert len(lines) == n + 3  # a title, the heading, a line for each rank, and what > means
        assert all(re.match(r"[> ]+\d+ +\d+ ", line) for line in lines[2:-1])
        assert len(lines[0]) <= 3 * WIDTH
        assert f"launcher {launcher.pid}: rankwise run -n {n} " in lines[0]
        assert lines[0].endswith("…")
        screen = in_terminal("status", str(launcher.pid))
        assert_fits(screen)
        assert "outside any collective for" in " ".join(screen.split())
        assert screen.count("in barrier #2 for") == n - 1
    finally:
        launcher.communicate(timeout=150)
    assert launcher.returncode == 0


def in_pipe_or_empty(*words: str) -> str:
    return subprocess.run([*RANKWISE, *words], capture_output=True, text=True, timeout=150).stdout


def test_a_row_is_one_line_in_a_pipe_and_wrapped_in_a_terminal() -> None:
    rows = [("backend", "result", "reason"), ("nccl", "does not work", "no GPU " * 20 + "in\u2011it")]
    assert [line.count("\n") for line in columns(rows, "<<")] == [0, 0]
    wrapped = columns(rows, "<<", 60)[1]
    assert_fits(wrapped, 60)
    assert all(line.startswith(" " * 24) for line in wrapped.splitlines()[1:])
    below = columns(rows, "<<", 40)[1]  # beside the first columns there are only 16 left
    assert_fits(below, 40)
    assert below.splitlines()[0] == "nccl     does not work"
    assert words_of(below) == words_of(wrapped)


def test_lists_paragraphs_and_commands() -> None:
    paragraph, command = "One two\nthree four.\n\nexamples:\n", "  a command that is not divided\n"
    entry = "  -x, --long  does\n              this and that\n"
    wrapped = "One two three four.\n\nexamples:\n" + command + "  -x, --long\n      does this and\n      that\n"
    assert fill(paragraph + command + entry, 20) == wrapped
    assert fill("a--long-option-that-stays whole", 10) == "a--long-option-that-stays\nwhole\n"


def test_a_command_is_cut_after_a_word() -> None:
    assert one_line("/opt/python/bin/python3 -m rankwise run -n 2 x.py", 80) == "rankwise run -n 2 x.py"
    assert one_line("/opt/bin/python3.12 /opt/bin/rankwise run x.py", 80) == "rankwise run x.py"
    assert one_line("/opt/bin/train --fast", 80) == "train --fast"
    assert one_line("", 80) == ""
    assert one_line("python  train.py\n--epochs 3", 30) == "python train.py --epochs 3"
    assert one_line("python train.py --epochs 3 --rate 4", 27) == "python train.py --epochs …"


def test_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert width() == 77
    monkeypatch.setenv("COLUMNS", "wide")
    monkeypatch.setattr(sys, "__stdout__", None)
    assert width() == 80


def test_the_line_about_the_machine_fits() -> None:
    assert_fits(fill(f"machine: {Machine.read()}", WIDTH))


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["statsu"], "unknown command 'statsu': did you mean status?"),
        (["bench", "--operations", "x"], "unknown option --operations (see"),
        (["status", "--wacth"], "unknown option --wacth: did you mean --watch?"),
        (["run", "--tag_outputs", "-n", "2", "true"], "unknown option --tag-outputs: did you mean --tag-output?"),
        (["bench", "allreduce"], "unknown operation 'allreduce': did you mean all_reduce?"),
        (["tune", "-n", "2", "--ouput=x"], "unknown option --ouput: did you mean --output?"),
        (["tclsh", "--comands"], "unknown words '--comands': did you mean --commands?"),
    ],
)
def test_did_you_mean(words: list[str], suggestion: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = rankwise(capfd, *words)
    assert done.returncode == 2
    assert suggestion in done.stderr


def test_trace_fits(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    subprocess.run(
        [*RANKWISE, "run", "-n", "2", "--trace", str(file), "python", "-c", PROGRAM, *LONG],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=150,
    )
    for text in (in_terminal("trace", "-o", "/dev/null", str(file)), in_pipe("trace", "-o", "/dev/null", str(file))):
        assert_fits(text.partition("\ntimeline: ")[0])
        assert "barrier" in text
