"""rankwise.init and the default group, in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import rankwise as rw


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(code: str, **variables: str) -> str:
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_process_without_a_launcher_is_one_rank() -> None:
    assert run("import rankwise as rw; g = rw.init(); print(g, rw.all_reduce(3))") == (
        "<Group 'world', rank 0 of 1, solo backend> 3"
    )


@pytest.mark.parametrize("backend", ["solo", "threads", "shm"])
def test_any_backend_serves_one_rank(backend: str) -> None:
    code = "import sys, rankwise as rw; g = rw.init(sys.argv[1] or None); print(g.backend, g.all_gather(1).tolist())"
    argument = code.replace("sys.argv[1] or None", repr(backend))
    assert run(argument) == f"{backend} [1]"
    assert run(code.replace("sys.argv[1] or None", ""), RANKWISE_BACKEND=backend) == f"{backend} [1]"


def test_init_returns_the_same_group_until_it_is_closed() -> None:
    assert (
        run(
            """
import rankwise as rw
first = rw.init(timeout=5)
assert first.timeout == 5 and rw.init() is first and rw.init("solo", timeout=7) is first and first.timeout == 7
try:
    rw.init("shm")
except ValueError as error:
    print(error)
rw.close()
second = rw.init("shm")
assert second is not first and not second.closed
print(rw.all_reduce(2))
"""
        )
        == "backend='shm': the default group already uses 'solo'\n2"
    )


def test_a_job_that_allows_pickles() -> None:
    code = """
import rankwise as rw
group = rw.init(ARGUMENT)
with group.dup() as part:
    print(group.allow_pickle, part.allow_pickle, rw.init() is group, rw.init(allow_pickle=False).allow_pickle)
"""
    assert run(code.replace("ARGUMENT", "")) == "False False True False"
    assert run(code.replace("ARGUMENT", "allow_pickle=True")) == "True True True False"
    assert run(code.replace("ARGUMENT", ""), RANKWISE_ALLOW_PICKLE="1") == "True True True False"
    assert run(code.replace("ARGUMENT", "allow_pickle=False"), RANKWISE_ALLOW_PICKLE="1") == "False False True False"


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"^backend='nope': expected one of .*shm.*solo.*threads"):
        rw.init("nope")
    for timeout, error, text in (
        (0, ValueError, "timeout=0: expected a number of seconds above 0"),
        (float("inf"), ValueError, "timeout=inf: expected a number of seconds above 0 and at most"),
        ("x", TypeError, "timeout='x': expected a number of seconds, got str"),
    ):
        with pytest.raises(error, match=f"^{text}"):
            rw.init(timeout=timeout)  # type: ignore[arg-type]
    done = python("import rankwise as rw; rw.barrier()")
    text = "rankwise.ClosedError: there is no default group yet: call `group = rw.init()` before the first operation"
    assert done.stderr.splitlines()[-1] == text


def test_an_error_of_init_ends_the_program() -> None:
    done = python("import rankwise as rw; rw.init('nope')")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("ValueError: backend='nope': expected one of ")


def test_bad_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")  # without it, the error for several hosts is that there is no gloo
    for variables, text in (
        ({"RANKWISE_BACKEND": "nope"}, "^environment variable RANKWISE_BACKEND='nope': expected one of"),
        ({"RANKWISE_CHECK": "2"}, "^environment variable RANKWISE_CHECK='2': expected 1 or 0"),
        ({"RANKWISE_TIMEOUT": "soon"}, "RANKWISE_TIMEOUT='soon': expected a number of seconds above 0"),
        ({"RANKWISE_TIMEOUT": "inf"}, "RANKWISE_TIMEOUT='inf': expected a number of seconds above 0 and at most"),
        ({"RANKWISE_RANK": "1"}, "RANKWISE_RANK and RANKWISE_WORLD_SIZE: expected both or neither"),
        (
            {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            "started ranks on several hosts without an address to meet at",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "WORLD_SIZE=2 announces several ranks, but without MASTER_ADDR and MASTER_PORT",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "RANKWISE_BACKEND": "solo"}, "backend='solo' is for one rank, and this"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "RANKWISE_BACKEND": "threads"}, r"rankwise.spawn\(fn, n, threads=True\)"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises((ValueError, rw.RankwiseError), match=text):
                rw.init()


def test_exit_closes_open_groups() -> None:
    """Exit prints nothing and does not hang, whatever is open."""
    code = """
import rankwise as rw
group = rw.init("shm")
part, other = group.split(0), group.split(1)
work = group.irecv((3,), 0)
cycle = [group]; cycle.append(cycle)
"""
    done = python(code)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_fork_does_not_close_the_parents_group() -> None:
    assert (
        run(
            """
import os, sys
import rankwise as rw
group = rw.init("shm")
child = os.fork()
if child == 0:
    try:
        group.barrier()
    except rw.ClosedError:
        sys.exit(7)  # through the interpreter's exit, which closes what is the process's own
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
group.barrier()
print(rw.all_reduce(1))
"""
        )
        == "1"
    )
