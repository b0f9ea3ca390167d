"""The state of a job as a title and the rows of a table, which the terminal and the web page show."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rankwise.contract.ranks import count_of_ranks
from rankwise.observe.jobs import RunningJob
from rankwise.system.words import amount, duration

HEAD = ("rank", "pid", "CPUs", "state", "moved", "waited", "where")
LAYOUT = ">>><>>"  # as layout.columns wants it
AWAITED = "> others wait for it"
NONE_JOINED = "no rank has joined: they are starting, or do not call rankwise.init"


@dataclass(frozen=True)
class Table:
    """A job at one moment. title comes before the command; awaited: for each row, whether others wait for its rank."""

    title: str
    command: str
    rows: list[tuple[str, ...]]
    awaited: list[bool]
    joined: bool


def table(job: RunningJob) -> Table:
    """The table of a running job, a row for each of its ranks on this host."""
    ranks = job.ranks()
    age = max(1e-9, time.time() - job.view.started / 1e9)
    where = f"launcher {job.launcher}" if job.launcher else "no launcher"
    here, count = len(ranks), count_of_ranks(job.world_size)
    if job.world_size != here:
        count = f"{here} of {count}"
    if job.others or job.world_size != here:
        count += f" ({count_of_ranks(1 + len(job.others), 'node')})"
    rows: list[tuple[str, ...]] = [
        (
            f"{'> ' if rank.behind else '  '}{rank.rank}",
            str(rank.pid) if rank.pid else "",
            rank.cpus,
            f"{rank.how} (restart {rank.restart})" if rank.restart else rank.how,
            amount(rank.state.bytes),
            f"{duration(rank.state.waited / 1e9)} {100 * rank.state.waited / 1e9 / age:3.0f} %",
            rank.state.description if rank.state.joined else "",
        )
        for rank in ranks
    ]
    return Table(
        f"{count} for {duration(age)}, {where}: ",
        job.command,
        rows,
        [rank.behind for rank in ranks],
        any(rank.state.joined for rank in ranks),
    )
