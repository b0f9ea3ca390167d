"""The command line of `rankwise doctor`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rankwise.contract.job import Job
from rankwise.contract.ranks import count_of_ranks
from rankwise.launch.environment import find_job
from rankwise.system.settings import Settings
from rankwise.tools.cli import Parser, option, seconds, terminated
from rankwise.tools.doctor.facts import FOR, Fact, Trial, facts, trials
from rankwise.tools.layout import columns, row_width

DESCRIPTION = """\
Show whether this machine is ready for ranks on one host, on several hosts and on GPUs, and what is
missing. Every backend is tried: two ranks compute an all_reduce with it. If something is missing,
the reason ends with the command or option that changes it.

Each backend implements the operations on one engine. The last table shows which backend
rankwise.init uses under each launcher. The command exits with 0 if ranks of one host can share memory, else with 1.
"""

EXAMPLES = """\
examples:
  rankwise doctor               what works here, and what is missing
  rankwise doctor --json        the same for programs
  rankwise doctor --timeout 10  on a machine where something hangs
"""


HERE = "this environment"


@dataclass(frozen=True)
class Choice:
    """Which backend rw.init would choose under one launcher, and why."""

    where: str
    backend: str
    why: str


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="rankwise doctor",
        usage="rankwise doctor [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        options=(
            option("--json", action="store_true", help="print it as JSON"),
            option(
                "--timeout",
                type=seconds,
                default=60.0,
                metavar="S",
                help="seconds for all trials together (default 60)",
            ),
        ),
    )
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, terminated)
    try:
        known, tried = facts(), trials(list(FOR), options.timeout)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    chosen = choices(tried)
    if options.json:
        report = {
            "facts": {fact.name: {"value": fact.value, "note": fact.note} for fact in known},
            "backends": {trial.backend: asdict(trial) for trial in tried},
            "choices": [asdict(choice) for choice in chosen],
        }
        print(json.dumps(report, indent=2))
    else:
        show(known, tried, chosen)
    return 0 if any(trial.backend == "shm" and trial.works for trial in tried) else 1


def choices(tried: Sequence[Trial]) -> list[Choice]:
    """The backends that rw.init chooses, the present environment first."""
    works = {trial.backend: trial.works for trial in tried}
    alone, one_host = Job(), Job(world_size=2, local_world_size=2)
    several = {"rankwise run or torchrun": Job(world_size=2), "mpiexec": Job(world_size=2, launcher="mpiexec")}
    return [
        _here(),
        Choice("python program.py", alone.default_backend, "without a launcher there is one rank"),
        Choice("any launcher, one host", one_host.default_backend, "all ranks share this host's memory"),
        *(
            Choice(
                f"{launcher}, several hosts",
                job.default_backend,
                f"shared memory within each host; between hosts {job.engine}{_unless(works, job.engine)}",
            )
            for launcher, job in several.items()
        ),
        Choice("GPUs", "nccl", "only if you ask for it: rw.init('nccl')" + _unless(works, "nccl")),
    ]


def _here() -> Choice:
    """The choice in the environment of this command."""
    try:
        settings = Settings.read()
        job = find_job(os.environ, settings)
    except Exception as error:  # noqa: BLE001 - the report shows it and goes on
        return Choice(HERE, "none", f"rw.init rejects the environment variables: {error}")
    if settings.backend is not None:
        return Choice(HERE, settings.backend, "RANKWISE_BACKEND names it")
    ranks = count_of_ranks(job.world_size)
    where = "one host" if job.one_host else "several hosts"
    return Choice(
        HERE, job.default_backend, f"{ranks} of {job.launcher} on {where}" if job.launcher else "one rank (no launcher)"
    )


def _unless(works: dict[str, bool], backend: str) -> str:
    return "" if works.get(backend) else f"; {backend} does not work here, see above"


def readiness(tried: Sequence[Trial]) -> list[tuple[str, str, str]]:
    """What can be used here: one host, several hosts, GPUs; for each "ready" or "not ready", and the reason."""
    by_name = {trial.backend: trial for trial in tried}
    works = {name for name, trial in by_name.items() if trial.works}
    between = [name for name in ("gloo", "mpi") if name in works]
    return [
        _ready("one host", "shm" in works, "ranks share memory", by_name.get("shm")),
        _ready("several hosts", bool(between), f"over {' or '.join(between)}", by_name.get("gloo")),
        _ready("GPU", "nccl" in works, "NCCL works", by_name.get("nccl")),
    ]


def _ready(what: str, ready: bool, how: str, missing: Trial | None) -> tuple[str, str, str]:
    reason = how if ready else "it was not tried" if missing is None else _missing(missing)
    return what, "ready" if ready else "not ready", reason


def _missing(trial: Trial) -> str:
    """Why the backend does not work, and the command that changes it, named once."""
    why = trial.why.partition(" is not available here: ")[2] or trial.why
    reason, _, command = why.rpartition("; ")
    if command and trial.remedy.startswith(command):
        why = reason
    return f"{why}; try: {trial.remedy}" if trial.remedy else why


def show(facts: Sequence[Fact], tried: Sequence[Trial], chosen: Sequence[Choice]) -> None:
    """Print what is ready, and the tables."""
    backends = [
        (trial.backend, "works", f"for {trial.use}")
        if trial.works
        else (trial.backend, "does not work", _missing(trial))
        for trial in tried
    ]
    _table(None, readiness(tried))
    _table(("backend", "result", "reason"), backends)
    _table(("this machine", "result", "reason"), [(fact.name, fact.value, fact.note) for fact in facts])
    _table(("started by", "rw.init uses", "reason"), [(c.where, c.backend, c.why) for c in chosen])


def _table(heads: tuple[str, str, str] | None, rows: Sequence[tuple[str, str, str]]) -> None:
    lines = columns([*([] if heads is None else [heads]), *rows], "<<", row_width())
    print("\n".join(lines if heads is None else ["", *lines]))
