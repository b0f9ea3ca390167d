"""`breakpoint()` on ranks: the terminal goes to one of them at a time, and meanwhile no timeout runs."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "rankwise", "run"]
PROMPT = r"\(Pdb, rank (\d)\) "


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.environ["TERM"] = "dumb"
            os.environ.pop("PYTHONBREAKPOINT", None)
            os.execv(command[0], command)
        self.text = ""
        self._found = 0

    def read(self, pattern: str) -> re.Match[str]:
        """Read until the text behind what the last call found matches the pattern."""
        end = time.monotonic() + 60
        while not (found := re.compile(pattern).search(self.text, self._found)):
            assert time.monotonic() < end, self.text
            if not select.select([self._terminal], [], [], 1)[0]:
                continue
            try:
                self.text += os.read(self._terminal, 4096).decode()
            except OSError:  # the program has ended
                pytest.fail(f"expected {pattern}: {self.text}")
        self._found = found.end()
        return found

    def type(self, line: str) -> None:
        os.write(self._terminal, line.encode() + b"\n")

    def end(self) -> int:
        """The program's exit code."""
        while select.select([self._terminal], [], [], 60)[0]:
            try:
                self.text += os.read(self._terminal, 4096).decode()
            except OSError:
                break
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return code

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)
            self.end()
        os.close(self._terminal)


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    made: list[Screen] = []
    yield made
    for screen in made:
        screen.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


ONE = """
import time
import rankwise as rw
group = rw.init()
group.barrier()
group.timeout = 4
mine = 10 + group.rank
if group.rank == 1:
    breakpoint()
print("sum", group.all_reduce(mine))
"""
LONGER = 6  # seconds, than that timeout


def test_a_rank_that_does_not_come_after_all_is_a_timeout(screens: list[Screen], program: Path) -> None:
    program.write_text(ONE.replace("breakpoint()", "breakpoint()\n    time.sleep(1000)"))
    screens.append(screen := Screen(*RUN, "-n", "2", str(program)))
    screen.read(PROMPT)
    screen.type("c")
    assert screen.end() == 1
    assert "rank 1 did not reach all_reduce #2 within the timeout of 4 s" in screen.text


ALL = """
import rankwise as rw
group = rw.init()
breakpoint()
total = group.all_reduce(1)
print("total", total)
"""


def test_ranks_that_stop_at_once_have_the_terminal_in_turns(screens: list[Screen], program: Path) -> None:
    """`n` steps over a collective although the others still stand at their breakpoints."""
    program.write_text(ALL)
    screens.append(screen := Screen(*RUN, "-n", "3", str(program)))
    over: list[str] = []  # the ranks that have stepped over the collective
    while len(over) < 3:
        line, rank = screen.read(r"-> (.*?)\r\n(?:.*\r\n)*?.*" + PROMPT).groups()
        if "print" in line:
            over.append(rank)
        screen.type("c" if "print" in line else "n")
    assert sorted(over) == ["0", "1", "2"]
    assert screen.end() == 0
    assert screen.text.count("total 3") == 3


def test_quitting_ends_the_job(screens: list[Screen], program: Path) -> None:
    program.write_text(ONE)
    screens.append(screen := Screen(*RUN, "-n", "2", str(program)))
    screen.read(PROMPT)
    screen.type("q")
    assert screen.end() == 1
    assert "BdbQuit" in screen.text


SPAWN = """
import rankwise as rw

def work():
    group = rw.init()
    group.barrier()
    group.timeout = 4
    mine = 10 + group.rank
    if group.rank == 1:
        breakpoint()
    return group.all_reduce(mine)

if __name__ == "__main__":
    import sys
    if sys.argv[1] == "spawn":
        print("sums", rw.spawn(work, 5))
    else:
        with rw.Pool(3) as pool:
            print("sums", pool.run(work))
"""


def test_the_terminal_goes_to_the_rank_and_no_timeout_runs(screens: list[Screen], tmp_path: Path) -> None:
    job, spawning = tmp_path / "program.py", tmp_path / "spawning.py"
    job.write_text(ONE)
    spawning.write_text(SPAWN)
    ways = [  # 5 ranks: more than cores, perhaps, so that they stay in the launcher's session
        ([*RUN, "-n", "2", str(job)], "sum 21", 2),
        ([*RUN, "-n", "5", str(job)], "sum 60", 5),
        ([sys.executable, str(spawning), "spawn"], f"sums {[60] * 5}", 1),
        ([sys.executable, str(spawning), "pool"], f"sums {[33] * 3}", 1),
    ]
    screens.extend(Screen(*command) for command, _, _ in ways)
    for screen in screens:
        assert screen.read(PROMPT)[1] == "1"
    time.sleep(LONGER)
    for screen, (_, total, times) in zip(screens, ways, strict=True):
        screen.type("p mine * 1000")
        screen.read(r"11000\r\n" + PROMPT)
        screen.type("c")
        assert screen.end() == 0
        assert screen.text.count(total) == times


def test_without_a_terminal(program: Path) -> None:
    program.write_text(ONE)
    command = [*RUN, "-n", "2", "--stdin", "1", str(program)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}
    fed = subprocess.run(
        command, env=environment, input="p mine * 1000\nc\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert (fed.returncode, "11000" in fed.stdout) == (0, True), fed.stderr
    command[-2] = "none"
    alone = subprocess.run(command, env=environment, input="", capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode == 1
    assert "RuntimeError: breakpoint() on rank 1: expected a terminal" in alone.stderr
