"""A collective that one rank called last and another never called: no rank can notice it, but the launcher does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from rankwise import _native
from rankwise.launch.last_calls import difference

PROGRAM = """
import sys
import numpy as np, rankwise as rw
group = rw.init()
group.all_reduce(np.ones(4))
if group.rank == 1:
    group.broadcast(np.ones(4), src=1)
elif len(sys.argv) > 1:
    group.reduce(np.ones(4), dst=1)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--trace", "none", "python", "-c", PROGRAM]
    return subprocess.run([*command, *arguments], capture_output=True, text=True)


def test_a_last_call_without_a_partner_fails_the_job() -> None:
    result = run()
    assert result.returncode == 1
    assert result.stderr == (
        "rankwise: the ranks ended after different calls: rank 0 after all_reduce #1 (32 bytes of float64, sum), "
        "rank 1 after broadcast #2 (32 bytes of float64, root 1)\n"
    )


def test_different_last_calls_fail_the_job() -> None:
    result = run("both")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "rankwise: the ranks ended after different calls: rank 0 after reduce #2 (32 bytes of float64, sum, root 1), "
        "rank 1 after broadcast #2 (32 bytes of float64, root 1)"
    )


def test_different_last_calls_of_a_group_that_is_not_the_last_one_used_fail_the_job() -> None:
    program = """
import numpy as np, rankwise as rw
group = rw.init()
x = np.ones(4)
with group.split(0) as part:
    part.broadcast(x, src=1) if group.rank == 1 else part.reduce(x, dst=1)
group.barrier()
"""
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--trace", "none", "python", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert re.fullmatch(
        r"rankwise: the ranks of group .* ended after different calls: rank 0 after reduce #1 .*, rank 1 after .*",
        result.stderr.splitlines()[-1],
    )


Call = tuple[str, int, int]  # name, group, sequence


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([[("barrier", 0, 1)], [("barrier", 0, 1)]], ""),
        ([[("barrier", 0, 1), ("send", 0, 0)], [("barrier", 0, 1), ("recv", 0, 0)]], ""),
        ([[("barrier", 0, 1), ("barrier", 1, 1)], [("barrier", 0, 1)]], ""),  # a group of rank 0 alone
        ([[("shrink", 0, 0), ("barrier", 0, 1)], [("barrier", 0, 1), ("shrink", 0, 0)]], ""),
        (
            [[("barrier", 0, 1)], []],
            "the ranks ended after different calls: rank 4 after barrier #1, rank 5 after init",
        ),
        (
            [[("barrier", 2, 1), ("barrier", 0, 1)], [("barrier", 2, 2), ("barrier", 0, 1), ("send", 0, 0)]],
            "the ranks of group 2 ended after different calls: rank 4 after barrier #1, rank 5 after barrier #2",
        ),
        (
            [[("barrier", 2, 1), ("barrier", 0, 1)], [("barrier", 2, 2), ("barrier", 0, 1)]],
            "the ranks of group 2 ended after different calls: rank 4 after barrier #1, rank 5 after barrier #2",
        ),
        ([[("barrier", 2, 1), *[("send", 0, 0)] * 1024], [("barrier", 2, 2)]], ""),  # overwritten
    ],
)
def test_which_calls_differ(ranks: Sequence[Sequence[Call]], expected: str) -> None:
    assert difference(trace(ranks).fd, first=4) == expected


def trace(ranks: Sequence[Sequence[Call]], failing: bool = False) -> _native.Segment:
    """The segment of a job whose ranks called this; failing: rank 0's last call failed."""
    segment = _native.Segment.create(len(ranks))
    for rank, calls in enumerate(ranks):
        writer = _native.TraceWriter(segment.fd, rank)
        writer.begin("init", 0, 0, 0).end()
        for number, (name, group, sequence) in enumerate(calls):
            writer.begin(name, group, sequence, 0).end(failed=failing and rank == 0 and number == len(calls) - 1)
    return segment


def test_an_error_that_a_rank_caught_is_its_own_affair() -> None:
    assert difference(trace([[("barrier", 0, 1)], []], failing=True).fd, first=0) == ""
