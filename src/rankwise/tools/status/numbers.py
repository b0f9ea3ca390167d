"""The state of jobs for other programs: as JSON, and as Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rankwise.observe.jobs import RankView, RunningJob

if TYPE_CHECKING:
    from prometheus_client.core import Metric

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


def _metrics(jobs: Sequence[RunningJob]) -> list[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    # job_pid: the launcher's, or without a launcher a rank's. started tells several groups of one process apart.
    labels = ["job_pid", "started", "rank"]
    alive = GaugeMetricFamily("rankwise_rank_alive", "1 while the rank's process runs.", labels=labels)
    behind = GaugeMetricFamily("rankwise_rank_behind", "1 while other ranks wait for this rank.", labels=labels)
    restarts = GaugeMetricFamily("rankwise_rank_restarts", "How often the launcher replaced the rank.", labels=labels)
    inside = GaugeMetricFamily("rankwise_rank_in_operation", "1 while the rank is in an operation.", labels=labels)
    since = GaugeMetricFamily(
        "rankwise_rank_since_seconds", "Seconds since the rank began, or ended, its last operation.", labels=labels
    )
    operations = CounterMetricFamily("rankwise_rank_operations", "Operations that the rank has begun.", labels=labels)
    moved = CounterMetricFamily("rankwise_rank_moved_bytes", "Bytes of the rank's arrays.", labels=labels)
    waited = CounterMetricFamily("rankwise_rank_waited_seconds", "Seconds spent waiting for ranks.", labels=labels)
    for job in jobs:
        pid = job.launcher or next(iter(job.holders.values()))
        for rank in job.ranks():
            place = [str(pid), f"{job.view.started / 1e9:.6f}", str(rank.rank)]
            alive.add_metric(place, _alive(rank))
            behind.add_metric(place, rank.behind)
            restarts.add_metric(place, rank.restart)
            inside.add_metric(place, rank.state.inside)
            since.add_metric(place, rank.state.since / 1e9)
            operations.add_metric(place, rank.state.operations)
            moved.add_metric(place, rank.state.bytes)
            waited.add_metric(place, rank.state.waited / 1e9)
    return [alive, behind, restarts, inside, since, operations, moved, waited]
