"""Where `rankwise run` writes the trace of a job: to the file it was given, or after a failure to a temporary one."""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:  # imported when there is a trace to write
    from pathlib import Path

    from rankwise.launch.local import LocalJob
    from rankwise.observe.trace_file import Trace

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
        return cls(path, True)

    def trace_of(self, job: LocalJob) -> str | None:
        """Write the trace of a finished job if the policy asks for it; returns a sentence about it, or None."""
        failed = job.culprit is not None and job.interrupted is None
        if self.always is None and not (self.on_failure and failed):
            return None
        from rankwise.observe.trace_file import has_operations, trace_of

        ended = [None if rank.returncode is None else rank.how for rank in job.ranks]
        lost = job.culprit
        failure = None if lost is None else job.hang or f"rank {lost.number} {lost.how}{lost.where}"
        trace = trace_of(job.segment_fd, job.argv, ended, job.spans(), failure)
        try:
            if self.always is not None:
                trace.write(self.always)
                return f"the trace is in {self.always}; to see it: rankwise trace {self.always}"
            if not has_operations(trace.ranks):
                return None
            path = _temporary(trace)
        except OSError as error:
            return f"the trace could not be written: {error}"
        return f"the last operations of each rank: rankwise trace {path}"


def _temporary(trace: Trace) -> Path:
    """Write the trace to a new file in this user's own folder, and delete the oldest ones there."""
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.gettempdir()) / f"rankwise-traces-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user's own")
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    trace.write(path)
    for old in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)[:-NEWEST]:
        old.unlink(missing_ok=True)
    return path
