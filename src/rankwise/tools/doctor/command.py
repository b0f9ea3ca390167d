"""The command line of `rankwise doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rankwise.contract.settings import TIMEOUT, Settings, is_timeout
from rankwise.launch.environment import find_job
from rankwise.tools.cli import Parser
from rankwise.tools.doctor.facts import Fact, facts
from rankwise.tools.doctor.trials import FOR, Trial, trials

EXAMPLES = """\
examples:
  rankwise doctor                   what this machine has, and which backends work
  rankwise doctor --json            the same for programs
  rankwise doctor --timeout 10      on a machine where something hangs
"""


@dataclass(frozen=True)
class Choice:
    """Which backend rw.init would choose under one launcher, and why."""

    where: str
    backend: str
    why: str


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="rankwise doctor",
        description="Report what this machine has, try every backend with a real all_reduce of two ranks, and show\n"
        "which backend would be chosen and how to install what is missing. Exits with 0 if shared memory works.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for all trials together (60)")
    options = parser.parse_args(argv)
    if not is_timeout(options.timeout):
        parser.error(f"--timeout {options.timeout:g}: expected {TIMEOUT}")
    found, tried = facts(), trials(list(FOR), options.timeout)
    chosen = choices(tried)
    if options.json:
        report = {
            "facts": {fact.name: {"value": fact.value, "note": fact.note} for fact in found},
            "backends": {trial.backend: asdict(trial) for trial in tried},
            "choices": [asdict(choice) for choice in chosen],
        }
        print(json.dumps(report, indent=2))
    else:
        show(found, tried, chosen)
    return 0 if any(trial.backend == "shm" and trial.works for trial in tried) else 1


def choices(tried: Sequence[Trial]) -> list[Choice]:
    """The backends that rw.init chooses, the present environment first."""
    works = {trial.backend: trial.works for trial in tried}
    found = [_here()]
    found.append(Choice("python program.py", "solo", "no launcher: one rank"))
    found.append(Choice("rankwise run, torchrun or mpiexec, one host", "shm", "all ranks share this host's memory"))
    engine = "mpi" if works.get("mpi") else "gloo"
    why = "shared memory within each host, between them"
    found.append(Choice("torchrun, several hosts", "hierarchical", f"{why} gloo" + _unless(works, "gloo")))
    found.append(Choice("mpiexec, several hosts", "hierarchical", f"{why} {engine}" + _unless(works, engine)))
    found.append(Choice("GPUs", "nccl", "by name: rw.init('nccl')" + _unless(works, "nccl")))
    return found


def _here() -> Choice:
    """The choice in the environment of this command."""
    try:
        settings = Settings.read()
        job = find_job(os.environ, settings)
    except Exception as error:  # noqa: BLE001 - the report shows it and goes on
        return Choice("here and now", "none", f"rw.init refuses this environment: {error}")
    if settings.backend is not None:
        return Choice("here and now", settings.backend, "RANKWISE_BACKEND names it")
    if job.world_size == 1:
        return Choice("here and now", "solo", f"one rank ({job.launcher or 'no launcher'})")
    if job.one_host or job.local_world_size is None:
        return Choice("here and now", "shm", f"{job.world_size} ranks of {job.launcher} on one host")
    return Choice("here and now", "hierarchical", f"{job.world_size} ranks of {job.launcher} on several hosts")


def _unless(works: dict[str, bool], backend: str) -> str:
    return "" if works.get(backend) else f"; {backend} does not work here, see above"


def show(found: Sequence[Fact], tried: Sequence[Trial], chosen: Sequence[Choice]) -> None:
    """Print the tables, with rich if it is installed."""
    backends = []
    for trial in tried:
        outcome = f"works ({trial.ranks} rank{'s'[: trial.ranks != 1]})" if trial.works else "does not work"
        backends.append((trial.backend, trial.use, outcome, trial.why))
    remedies = [(trial.backend, trial.remedy) for trial in tried if not trial.works and trial.remedy]
    _table("This machine", ("what", "value", ""), [(fact.name, fact.value, fact.note) for fact in found])
    _table("Backends, each tried with a real all_reduce", ("backend", "for", "", "why not"), backends)
    _table("What rw.init chooses", ("started by", "backend", "why"), [(c.where, c.backend, c.why) for c in chosen])
    if remedies:
        _table("How to get the others", ("backend", "command"), remedies)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads) - 1)]
        print(f"\n{title}")
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print("  " + "  ".join([*cells, row[-1]]).rstrip())
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(heads))
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        style = {"works": "green", "does not": "red"}
        table.add_row(
            *(Text(cell, style=next((s for t, s in style.items() if cell.startswith(t)), "")) for cell in row)
        )
    # Without a terminal the table is wide enough for whole sentences.
    Console(width=None if sys.stdout.isatty() else 150).print(table)
