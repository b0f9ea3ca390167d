"""Compiled programs are ranks like any other: what is wrong with their calls, or ends them, is said on every rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compilers import compiled, run, run_mixed
from rankwise import _native

PROGRAM = r"""
#include <rankwise.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reduce(rankwise_comm comm, uint64_t count) {
    double x[4] = {0, 1, 2, 3};
    rankwise_check(rankwise_all_reduce(comm, x, count, RANKWISE_F64, RANKWISE_SUM));
}

int main(int argc, char** argv) {
    const char* const what = argc > 1 ? argv[1] : "";
    rankwise_comm comm;
    rankwise_check(rankwise_init(&comm));
    reduce(comm, 3);
    if (strcmp(what, "mismatch") == 0) reduce(comm, 4);
    if (strcmp(what, "abort") == 0) abort();
    if (strcmp(what, "argument") == 0) rankwise_check(rankwise_send(comm, what, 1, RANKWISE_U8, 7, 0));
    if (strcmp(what, "twice") == 0) rankwise_check(rankwise_init(&comm));
    reduce(comm, 3);
    printf("rank %d of %d\n", rankwise_rank(comm), rankwise_world_size(comm));
    return 0; /* what is open is closed */
}
"""
SCRIPT = """
import numpy as np, rankwise as rw
group = rw.init()
group.all_reduce(np.ones(3))
group.all_reduce(np.ones(3))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("programs") / "program.c"
    source.write_text(PROGRAM)
    return compiled(source, source.parent)


def test_ranks_in_c(program: Path) -> None:
    done = run(3, program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3" for rank in range(3)]
    assert done.stderr == ""


def test_a_mismatch_names_the_lines_of_both_languages(program: Path) -> None:
    done = run_mixed(2, program, SCRIPT, "mismatch")
    assert done.returncode == 1
    c = "rank 0: all_reduce(count=4, dtype=float64, op=sum) at "
    python = f"rank 1: all_reduce(count=3, dtype=float64, op=sum) at {program.parent}/script.py:5   <-- other count"
    assert done.stderr.count(c) == 2  # on either rank
    assert done.stderr.count("program.c:9 (reduce)\n") == 2
    assert done.stderr.count(python) == 2
    last = done.stderr.splitlines()[-1]
    assert "exited with status 1 after all_reduce #2: the ranks called different operations" in last


def test_a_rank_that_dies_is_lost_to_the_others(program: Path) -> None:
    done = run_mixed(2, program, SCRIPT, "abort")
    assert done.returncode == 134
    assert "PeerLostError: rank 0 (pid" in done.stderr
    assert "was killed by SIGABRT after all_reduce #1" in done.stderr.splitlines()[-1]


def test_a_bad_argument_ends_the_program_with_its_line(program: Path) -> None:
    done = run_mixed(2, program, SCRIPT, "argument")
    assert done.returncode == 1
    text = "dest: rank 7 given, expected 0 to 1"
    assert f"program.c:19 (main): {text}" in done.stderr
    assert f"{text} at " in done.stderr.splitlines()[-1]


def test_a_process_joins_once(program: Path) -> None:
    done = run(2, program, "twice")
    assert done.returncode == 1
    assert "has already joined" in done.stderr


def test_the_settings_are_those_of_python_ranks(program: Path, tmp_path: Path) -> None:
    tuning = tmp_path / "tuning.json"
    names = {cores: {"ranks": 2, "date": "2026-11-26", "thresholds": dict.fromkeys(names, 4096)}
             for cores, names in _native.thresholds().items()}  # fmt: skip
    tuning.write_text(json.dumps({"cpu": "this one", **names}))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    mixed = f"if [ $RANKWISE_RANK = 0 ]; then exec {program}; else exec {sys.executable} {script}; fi"
    variables = {
        "RANKWISE_ALGORITHM": "all_reduce=flat, reduce=staged",
        "RANKWISE_OVERSUBSCRIBED": "1",
        "RANKWISE_DIRECT": "0",
        "RANKWISE_UNEXPECTED_BYTES": "1000",
        "RANKWISE_TUNING": str(tuning),
    }
    done = run(2, "sh", "-c", mixed, **variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANKWISE_ALGORITHM": "all_reduce=other"}, "expected one of inline, flat"),
        ({"RANKWISE_ALGORITHM": "all_reduce"}, "expected operation=algorithm, separated by commas"),
        ({"RANKWISE_TUNING": "/nowhere"}, "RANKWISE_TUNING: tuning file /nowhere: it cannot be read"),
        ({"RANKWISE_DIRECT": "yes"}, "environment variable RANKWISE_DIRECT='yes': expected 1 or 0"),
        ({"RANKWISE_BACKEND": "gloo"}, "init: a compiled program uses shm"),
    ],
)
def test_invalid_settings(variables: dict[str, str], text: str, program: Path) -> None:
    done = run(2, program, **variables)
    assert done.returncode != 0
    assert text in done.stderr.splitlines()[-1]  # some are found by the launcher


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2 announces several ranks"),
        ({"RANKWISE_RANK": "0"}, "expected all or none"),
        ({"RANKWISE_RANK": "0", "RANKWISE_WORLD_SIZE": "2", "RANKWISE_SEGMENT_FD": "99"}, "did not inherit"),
    ],
)
def test_without_rankwise_run(variables: dict[str, str], text: str, program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    assert done.returncode == 1
    assert text in done.stderr
