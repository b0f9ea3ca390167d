"""Where `rankwise run` writes the trace of a job: to the file it was given, or after a failure to a temporary one."""

from __future__ import annotations

import os
import stat
import time

from rankwise.contract.ranks import ranks_in_words
from rankwise.launch.losses import RESTART

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:  # imported when there is a trace to write
    from pathlib import Path

    from rankwise.launch.ending import Ending
    from rankwise.launch.local import LocalJob
    from rankwise.launch.nodes import Nodes
    from rankwise.observe.trace_file import Clock, Trace

NEWEST = 10  # traces of failed jobs that are kept


class TracePolicy:
    """always: the file that receives the trace however the job ends. on_failure: a failed job leaves a trace."""

    def __init__(self, always: Path | None, on_failure: bool) -> None:
        self.always = always
        self.on_failure = on_failure

    @classmethod
    def of(cls, word: str | None) -> TracePolicy:
        """The policy that --trace or RANKWISE_TRACE names: a file, "none", or None if neither is given.

        Raises ValueError if the file cannot be written.
        """
        if word is None or word == "none":
            return cls(None, word is None)
        from pathlib import Path

        path = Path(word)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ValueError(f"--trace {word}: expected a file in a folder that can be written to")
        if path.is_symlink():  # in a folder of several users, another one may have put it there
            raise ValueError(f"--trace {word}: expected a file, found a symbolic link; name the file that it leads to")
        return cls(path, True)

    def wants(self, ending: Ending) -> bool:
        """Whether a job that ended in this way leaves a trace."""
        return self.always is not None or (self.on_failure and ending.failed)

    def trace_of(self, job: LocalJob) -> str | None:
        """Write the trace of a finished job if the policy asks for it; returns a sentence about it, or None.

        If the job has several nodes, node 0's policy decides, and node 0 writes one trace of all nodes. If node 0 wants
        no trace or was lost, each other node follows its own policy, for a trace of its own ranks.
        """
        nodes = job.nodes if job.nodes is not None and job.nodes.collect else None
        if nodes is None and not self.wants(job.ending):
            return None
        from rankwise.observe.trace_file import has_operations

        others: list[tuple[Clock, Trace]] = []
        missing = ""
        if nodes is not None and nodes.node == 0:  # at once, because the others are waiting
            others, missing = _of_others(nodes)
        trace = _own_trace(job).with_nodes(others)
        if nodes is not None and nodes.node and nodes.deliver(trace.text):
            return "node 0 writes the trace of all nodes" if self.always is not None else None
        try:
            if self.always is not None:
                trace.write(self.always)
                return f"the trace{missing} is in {self.always}; to see it: rankwise trace {self.always}"
            if not has_operations(trace.ranks):
                return None
            path = _temporary(trace)
        except OSError as error:
            return f"the trace could not be written: {error}"
        return f"the last operations of each rank{missing}: rankwise trace {path}"


def _own_trace(job: LocalJob) -> Trace:
    """The trace of the ranks that this launcher started."""
    from rankwise.observe.trace_file import Loss, trace_of

    ended = [None if rank.returncode is None else rank.how for rank in job.ranks]
    lost = job.culprit
    failure: str | None = job.ending.reason or None
    if lost is not None and job.nodes is None:
        failure = job.hang or f"rank {lost.number} {lost.how}{lost.where}{lost.cause}"
    losses = [
        Loss(rank.number, rank.pid, f"{rank.how}{rank.where}", int(at * 1e9), action == RESTART)
        for rank, at, action in job.losses.all
    ]
    host = "" if job.nodes is None else job.nodes.host
    return trace_of(job.segment_fd, job.argv, ended, job.spans(), failure, losses, job.first, host)


def _of_others(nodes: Nodes) -> tuple[list[tuple[Clock, Trace]], str]:
    """The traces of the other nodes, and for example " without node 1" if that node's trace is missing, else ""."""
    from rankwise.observe.trace_file import Clock, Trace

    found = nodes.collected()
    others = [
        (Clock(node, nodes.host_of(node), each.offset, each.within), Trace.parse(each.text, f"node {node}'s trace"))
        for node, each in found.items()
    ]
    missing = set(range(1, len(nodes.sizes))) - set(found)
    return others, f" without {ranks_in_words(missing, 'node')}" if missing else ""


def _temporary(trace: Trace) -> Path:
    """Write the trace to a new file in this user's own folder, and delete the oldest ones there."""
    import tempfile
    from pathlib import Path

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
