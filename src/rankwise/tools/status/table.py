"""The state of a job: a title and the rows of a table, for the terminal and the web page; JSON; Prometheus's format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.contract.ranks import count_of_ranks
from rankwise.observe.jobs import RankView, RunningJob
from rankwise.system.texts import amount, duration

if TYPE_CHECKING:
    from prometheus_client.core import Metric

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
    joined, count = len(ranks), count_of_ranks(job.world_size)
    if job.world_size != joined:
        count = f"{joined} of {count}"
    if job.others or job.world_size != joined:
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


# ---- the state of jobs for other programs: as JSON, and as Prometheus's text format ----

MISSING = "needs prometheus_client: pip install 'rankwise[status]'"


def as_json(job: RunningJob) -> dict[str, Any]:
    """A job as JSON has it; times are in seconds."""
    return {
        "launcher": job.launcher,
        "command": job.command,
        "started": job.view.started / 1e9,
        "world_size": job.world_size,
        "ranks": [_rank(rank) for rank in job.ranks()],
    }


def _rank(rank: RankView) -> dict[str, Any]:
    state, operation = rank.state, rank.state.operation
    return {
        "rank": rank.rank,
        "pid": rank.pid or None,
        "cpus": rank.cpus or None,
        "state": rank.how,
        "alive": _alive(rank),
        "restart": rank.restart,
        "exit_status": state.exit_status,
        "inside": state.inside,
        "operation": operation.name if operation else None,
        "group": operation.group if operation else None,
        "sequence": operation.sequence if operation else None,
        "peer": operation.peer if operation else None,
        "since": state.since / 1e9,
        "operations": state.operations,
        "bytes": state.bytes,
        "waited": state.waited / 1e9,
        "behind": rank.behind,
        "where": state.description,
    }


def _alive(rank: RankView) -> bool:
    return rank.how in ("alive", "stopped")


def as_prometheus(jobs: Sequence[RunningJob]) -> str:
    """Jobs in Prometheus's text format. ImportError without prometheus_client."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Jobs(Collector):
        def collect(self) -> Iterable[Metric]:
            return _metrics(jobs)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Jobs())
    return generate_latest(registry).decode()


_METRICS: dict[str, tuple[str, Callable[[RankView], float]]] = {
    "alive": ("1 while the rank's process runs.", lambda rank: _alive(rank)),
    "behind": ("1 while other ranks wait for this rank.", lambda rank: rank.behind),
    "restarts": ("How often the launcher replaced the rank.", lambda rank: rank.restart),
    "in_operation": ("1 while the rank is in an operation.", lambda rank: rank.state.inside),
    "since_seconds": (
        "Seconds since the rank began, or ended, its last operation.", lambda rank: rank.state.since / 1e9,
    ),
    "operations": ("Operations that the rank has begun.", lambda rank: rank.state.operations),
    "moved_bytes": ("Bytes of the rank's arrays.", lambda rank: rank.state.bytes),
    "waited_seconds": ("Seconds spent waiting for ranks.", lambda rank: rank.state.waited / 1e9),
}  # fmt: skip
"""By name, without rankwise_rank_: what the number is, and how it is found."""
_COUNTERS = ("operations", "moved_bytes", "waited_seconds")


def _metrics(jobs: Sequence[RunningJob]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    # job_pid: the launcher's, or without a launcher a rank's. started tells several groups of one process apart.
    labels = ["job_pid", "started", "rank"]
    ranks = [
        ([str(job.launcher or next(iter(job.holders.values()))), f"{job.view.started / 1e9:.6f}", str(rank.rank)], rank)
        for job in jobs
        for rank in job.ranks()
    ]
    for name, (what, value) in _METRICS.items():
        family = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
        metric = family(f"rankwise_rank_{name}", what, labels=labels)
        for place, rank in ranks:
            metric.add_metric(place, value(rank))
        yield metric
