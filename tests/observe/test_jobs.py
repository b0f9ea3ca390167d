"""rankwise.observe.jobs: which ranks of a job the others wait for, and what processes of other users may hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise._native import Segment
from rankwise.observe import jobs
from rankwise.observe.jobs import RunningJob, _behind, _variable


def operation(name: str, sequence: int) -> Any:
    return SimpleNamespace(name=name, group=0, sequence=sequence, peer=None)


JOINED = [operation("init", 0)]
IN_INIT = [*JOINED, operation("init", 1)]  # the collective with which a rank joins the group of all ranks
IN_FIRST = [*IN_INIT, operation("all_reduce", 1)]
IN_SECOND = [*IN_FIRST, operation("all_reduce", 2)]


@pytest.mark.parametrize(
    ("ranks", "behind"),
    [
        (["nothing", IN_INIT, IN_INIT], {0}),  # it has not joined
        ([IN_INIT, IN_INIT, IN_INIT], set()),
        ([IN_INIT, IN_FIRST, IN_FIRST], {0}),  # the others have left init, and it is about to
        ([IN_FIRST, IN_SECOND, IN_SECOND], {0}),
        ([IN_FIRST, IN_FIRST, IN_FIRST], set()),
        (["nothing", IN_INIT, IN_FIRST], {0}),  # rank 1 waits for it too
    ],
)
def test_the_rank_that_others_wait_for(ranks: list[Any], behind: set[int]) -> None:
    begun = [[] if operations == "nothing" else operations for operations in ranks]
    view: Any = SimpleNamespace(operations=lambda rank: begun[rank])
    states: Any = [SimpleNamespace(inside=bool(its), operation=its[-1] if its else None) for its in begun]
    assert _behind(view, states, 0) == behind


def test_what_another_user_has_chosen_neither_reaches_the_terminal_nor_fails() -> None:
    idle = [sys.executable, "-c", "print(flush=True); input()", "\x1b[2J\x07é"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(idle, env={**os.environ, "RANKWISE_RANK": "1" * 5000}, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before it begins, /proc may know no command line yet
        view: Any = SimpleNamespace(world_size=0)
        assert RunningJob(view, holders={(0, 0): process.pid}).command.endswith("input() ?[2J?é")
        assert _variable(process.pid, "RANKWISE_RANK") == 0
        process.communicate(b"\n")


def test_stacks_that_another_user_has_made_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = '  File "é.py", line 1\n'
    monkeypatch.setattr(jobs, "request_stacks", lambda fd: {0: f"\x1b]0;title\x07\x9b2J{stack}"})
    view: Any = SimpleNamespace(world_size=0)
    assert RunningJob(view, path=os.devnull).stacks() == {0: f"?]0;title??2J{stack}"}


def test_a_pipe_that_is_called_like_a_segment_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have one in a mount namespace."""
    pipe = str(tmp_path / "memfd:rankwise ")
    os.mkfifo(pipe)
    monkeypatch.setattr(jobs, "_NAME", pipe)
    fd, segment = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), Segment.create(1)
    found: dict[int, RunningJob] = {}
    try:
        jobs._add_segments(os.getpid(), found)  # opens it
        assert found == {}
        monkeypatch.setattr(jobs, "_NAME", "/memfd:rankwise ")
        jobs._add_segments(os.getpid(), found)
        assert os.fstat(segment.fd).st_ino in found
    finally:
        os.close(fd)
