"""Writes the trace of a finished job."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

from rankwise.contract.ranks import ranks_in_words
from rankwise.launch.local import LocalJob
from rankwise.launch.losses import RESTART
from rankwise.launch.nodes import Nodes
from rankwise.observe.trace_file import Clock, Loss, Trace, trace_of

NEWEST = 10  # traces of failed jobs that are kept


def write(job: LocalJob, nodes: Nodes | None, always: Path | None) -> str | None:
    """Write the trace of a job to the file `always`, or to a temporary one; returns a sentence about it, or None.

    nodes: the other nodes, whose traces node 0 collects.
    """
    others: list[tuple[Clock, Trace]] = []
    missing = ""
    if nodes is not None and nodes.node == 0:  # at once, because the others are waiting
        others, missing = _of_others(nodes)
    trace = _own_trace(job).with_nodes(others)
    if nodes is not None and nodes.node and nodes.deliver(trace.text):
        return "node 0 writes the trace of all nodes" if always is not None else None
    try:
        if always is not None:
            trace.write(always)
            return f"the trace{missing} is in {always}; to see it: rankwise trace {always}"
        if not any(rank.calls for rank in trace.ranks):
            return None
        path = _temporary(trace)
    except OSError as error:
        return f"the trace could not be written: {error}"
    return f"the last operations of each rank{missing}: rankwise trace {path}"


def _own_trace(job: LocalJob) -> Trace:
    """The trace of the ranks that this launcher started."""
    ended = [None if rank.returncode is None else rank.how for rank in job.ranks]
    lost = job.culprit
    failure = job.ending.stopped or job.ending.reason or None
    if lost is not None and job.nodes is None and not job.ending.stopped:
        failure = job.hang or f"rank {lost.number} {lost.how}{lost.where}{lost.cause}"
    losses = [
        Loss(rank.number, rank.pid, f"{rank.how}{rank.where}", int(at * 1e9), action == RESTART)
        for rank, at, action in job.losses.all
    ]
    host = "" if job.nodes is None else job.nodes.host
    return trace_of(job.segment_fd, job.argv, ended, job.spans(), failure, losses, job.first, host)


def _of_others(nodes: Nodes) -> tuple[list[tuple[Clock, Trace]], str]:
    """The traces of the other nodes, and for example " without node 1" if that node's trace is missing, else ""."""
    collected = nodes.collected()
    others = [
        (Clock(node, nodes.host_of(node), each.offset, each.within), Trace.parse(each.text, f"node {node}'s trace"))
        for node, each in collected.items()
    ]
    missing = set(range(1, len(nodes.sizes))) - set(collected)
    return others, f" without {ranks_in_words(missing, 'node')}" if missing else ""


def _temporary(trace: Trace) -> Path:
    """Write the trace to a new file in this user's own folder, and delete the oldest ones there."""
    folder = Path(tempfile.gettempdir()) / f"rankwise-traces-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user's own")
    folder.chmod(0o700)  # it may have existed
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    trace.write(path)
    for old in sorted(folder.glob("*.json"), key=lambda file: file.lstat().st_mtime)[:-NEWEST]:
        old.unlink(missing_ok=True)
    return path
