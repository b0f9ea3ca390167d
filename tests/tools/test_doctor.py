"""rankwise doctor reports what the machine has, runs trials, and neither crashes nor hangs."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rankwise.system.tuning_file import Measured, TuningFile, cpu_name, save
from rankwise.tools.doctor import command
from rankwise.tools.doctor.facts import FACTS, FOR, Trial, _why_not, facts, meeting_place, trials
from seccomp import NUMBERS

TRIED = [
    Trial("shm", "the ranks of one host", True, 2),
    Trial("nccl", "GPUs", False, why="no GPU", remedy="buy one"),
]


def test_facts_name_the_usable_cores() -> None:
    found = {fact.name: fact for fact in facts()}
    assert list(found) == list(FACTS)
    assert re.fullmatch(r"[1-9]\d* usable", found["cores"].value)
    assert "by affinity" in found["cores"].note
    assert re.fullmatch(r"[\d.]+ \w+ free of [\d.]+ \w+", found["memory"].value)
    assert found["shared memory"].value == "works"


@pytest.mark.parametrize(
    ("nodes", "caches", "advice"),
    [
        (1, 1, "CPUs that share a last-level cache: 0"),
        (1, 3, "; rankwise run -n 3 --bind cache keeps each rank on a cache of its own"),
        (2, 4, "; rankwise run -n 2 --bind numa keeps each rank on a node of its own"),
        (2, 0, "; rankwise run -n 2 --bind numa keeps each rank on a node of its own"),
    ],
)
def test_it_names_the_command_that_binds_ranks(
    nodes: int, caches: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = {number: frozenset({number}) for number in range(nodes)}
    monkeypatch.setattr("rankwise.system.topology.nodes", lambda cpus: pretended)
    sharing = [frozenset({number}) for number in range(caches)]
    monkeypatch.setattr("rankwise.system.topology.last_level_caches", lambda cpus: sharing)
    value, note = FACTS["NUMA nodes"]()
    assert value == str(nodes)
    assert note.endswith(advice)


def test_a_missing_fact_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[str, str]:
        raise OSError("no such thing")

    monkeypatch.setitem(FACTS, "cores", broken)
    found = {fact.name: fact for fact in facts()}
    assert (found["cores"].value, found["cores"].note) == ("unknown", "OSError: no such thing")
    assert found["memory"].value != "unknown"


def test_the_namespaces_and_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {fact.name: fact for fact in facts()}
    for kind, name in (("net", "network"), ("pid", "PID"), ("user", "user")):
        inode = os.stat(f"/proc/self/ns/{kind}").st_ino
        assert re.fullmatch(rf"{inode}( \(host\))?", found[f"{name} namespace"].value)
    assert "--network host" in found["ranks connect by"].note
    monkeypatch.setenv("RANKWISE_SOCKET_DIR", "/nowhere")
    where, why = meeting_place()
    assert where == "nothing"
    assert why.startswith("environment variable RANKWISE_SOCKET_DIR='/nowhere': expected a directory that all ranks")
    with TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        monkeypatch.setenv("RANKWISE_SOCKET_DIR", folder)
        assert meeting_place()[0] == "unix socket"
        os.chmod(folder, 0o777)
        where, why = meeting_place()
    assert where == "nothing"
    assert "has the mode 0777" in why


@pytest.mark.skipif(not NUMBERS, reason="the numbers of this machine's system calls are not in seccomp.py")
@pytest.mark.parametrize("call", ["process_vm_readv", "process_vm_writev"])
def test_it_tries_whether_memory_may_be_read_and_written(call: str) -> None:
    code = f"""if True:
        from rankwise.tools.doctor.facts import direct_copies, watching
        from seccomp import forbid
        print(direct_copies()[0], watching()[0], sep=", ")
        forbid("{call}", "pidfd_open")
        print(*direct_copies(), watching()[0], sep=", ")
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before.endswith(", at once")
    if before.startswith("allowed"):
        assert after.startswith(
            "not allowed, a seccomp filter forbids it: start the container with --cap-add SYS_PTRACE"
        )
        assert after.endswith("copied twice, through shared memory, at the timeout")
    else:
        assert after.startswith("not allowed, ")


@pytest.mark.parametrize(
    ("code", "why"),
    [(errno.ENOSYS, "the system has no process_vm_readv"), (errno.EFAULT, "process_vm_readv failed: Bad address")],
)
def test_why_memory_may_not_be_read(code: int, why: str) -> None:
    assert why in _why_not(code)


@pytest.mark.parametrize("installed", [True, False])
def test_training_in_tcl_needs_torch(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTS, "torch", lambda: ("2.13.0" if installed else "not installed", ""))
    found = {fact.name: fact for fact in facts()}["training in Tcl"]
    expected = ("yes", "") if installed else ("no", "it needs torch: pip install 'rankwise[tcl]'")
    assert (found.value, found.note) == expected


def test_trials_are_real_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")  # of a launcher that the doctor runs under; no business of the trials
    monkeypatch.setenv("WORLD_SIZE", "9")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    found = {trial.backend: trial for trial in trials(["solo", "shm", "unheard-of"], 60.0)}
    assert (found["solo"].works, found["solo"].ranks) == (True, 1)
    assert (found["shm"].works, found["shm"].ranks) == (True, 2)
    assert not found["unheard-of"].works
    assert "unheard-of" in found["unheard-of"].why


def test_a_trial_that_hangs_is_terminated() -> None:
    start = time.monotonic()
    (trial,) = trials(["shm"], 0.01)
    assert (trial.works, trial.why) == (False, "no result within 0.01 s")
    assert time.monotonic() - start < 50


@pytest.mark.usefixtures("keeps_sigterm")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_no_trial_outlives_a_stopped_command(monkeypatch: pytest.MonkeyPatch, signum: int) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(name: str, timeout: float) -> subprocess.Popen[str]:
        if len(started) == 2:
            os.kill(os.getpid(), signum)
        trial = subprocess.Popen(["sleep", "1000"], text=True, stdout=subprocess.PIPE, start_new_session=True)
        started.append(trial)
        return trial

    monkeypatch.setattr("rankwise.tools.doctor.facts._start", start)
    monkeypatch.setattr(command, "facts", list)
    if signum == signal.SIGINT:
        assert command.main([]) == 128 + signum
    else:
        with pytest.raises(SystemExit, match=str(128 + signum)):
            command.main([])
    assert [trial.returncode for trial in started] == [-signal.SIGKILL] * 2


@pytest.fixture
def keeps_sigterm() -> Iterator[None]:
    """`main` handles SIGTERM from then on."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def quick(keeps_sigterm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(backends: list[str], timeout: float) -> list[Trial]:
        assert backends == list(FOR)
        return TRIED

    monkeypatch.setattr(command, "trials", tried)


@pytest.mark.usefixtures("quick")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backends"]["shm"]["works"] is True
    assert report["backends"]["nccl"]["remedy"] == "buy one"
    assert report["facts"]["cores"]["value"]
    assert {"where", "backend", "why"} == set(report["choices"][0])


@pytest.mark.usefixtures("quick")
def test_it_begins_with_what_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[:5] == [
        "one host       ready      ranks share memory",
        "several hosts  not ready  it was not tried",
        "GPU            not ready  no GPU; try: buy one",
        "",
        "backend  result         reason",
    ]
    for part in ("this machine", "usable", "hierarchical"):
        assert part in text
    assert not re.search(r"[^\x00-\x7f]| $", text, re.MULTILINE)  # neither lines of boxes nor padding


@pytest.mark.usefixtures("quick")
def test_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command.main([])
    piped = capsys.readouterr().out
    monkeypatch.setattr(command, "row_width", lambda: 80)
    command.main([])
    wrapped = capsys.readouterr().out
    assert max(map(len, wrapped.splitlines())) <= 80
    # Free memory and times differ from run to run.
    words, expected = (sorted(re.sub(r"[\d.]+", "0", text).split()) for text in (wrapped, piped))
    assert words == expected


def test_a_remedy_is_named_once() -> None:
    why = "BackendUnavailable: backend 'nccl' is not available here: no module cuda; pip install 'rankwise[nccl]'"
    trial = Trial("nccl", "GPUs", False, why=why, remedy="pip install 'rankwise[nccl]' on a machine with a GPU")
    assert command.readiness([trial])[2] == (
        "GPU",
        "not ready",
        "no module cuda; try: pip install 'rankwise[nccl]' on a machine with a GPU",
    )


@pytest.mark.usefixtures("quick")
def test_the_choices_for_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command.main(["--json"])
    assert json.loads(capsys.readouterr().out)["choices"][0]["backend"] == "hierarchical"
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv("MASTER_PORT", "29500")
    command.main(["--json"])
    here = json.loads(capsys.readouterr().out)["choices"][0]
    assert here["backend"] == "hierarchical"
    assert here["why"] == "4 ranks of RANK and WORLD_SIZE on several hosts"
    monkeypatch.setenv("RANK", "nine")
    command.main(["--json"])
    assert "nine" in json.loads(capsys.readouterr().out)["choices"][0]["why"]


def tuning_fact() -> tuple[str, str]:
    found = {fact.name: fact for fact in facts()}["tuning"]
    return found.value, found.note


def test_the_tuning_file_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning_fact() == ("defaults", "rankwise tune -n N measures this machine, for N ranks")
    path = tmp_path / "t.json"
    monkeypatch.setenv("RANKWISE_TUNING", str(path))
    why = f"tuning file {path}: it cannot be read: No such file or directory; RANKWISE_TUNING=none selects the defaults"
    assert tuning_fact() == ("cannot be used", why)
    run = Measured(4, "2026-11-22", {"flat_reduce": 77})
    save(str(path), TuningFile(cpu_name(), {"own_cores": run}))
    assert tuning_fact() == ("from a file", f"{path}: own_cores with 4 ranks on 2026-11-22")
    save(str(path), TuningFile("Other", {"own_cores": run}))
    assert tuning_fact() == (
        "from a file",
        f"{path}: measured on another CPU, Other; own_cores with 4 ranks on 2026-11-22",
    )
