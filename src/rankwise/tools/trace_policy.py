"""Where `rankwise run` writes the trace of a job: to the file it was given, or after a failure to a temporary one."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from pathlib import Path

    from rankwise.launch.ending import Ending
    from rankwise.launch.local import LocalJob


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
        from rankwise.tools import job_trace  # imports dataclasses and json, without which the launcher starts sooner

        return job_trace.write(job, nodes, self.always)
