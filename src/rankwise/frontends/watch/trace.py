"""The trace of a watched job: a process beside the host's first rank writes it when that rank has ended, however."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise import _watch
from rankwise._native import Segment, SegmentView
from rankwise.system import files


def write_at_end(segment: Segment, path: Path) -> None:
    """Start the process that writes the trace to `path` when this process has ended.

    It has a session of its own, because launchers kill the ranks' sessions when a job fails.

    Raises:
        OSError: the file cannot be written, or is a symbolic link or another user's.
    """
    open(path, "w", opener=files.own).close()
    command = [sys.executable, "-m", "rankwise.frontends.watch.trace", str(path), str(segment.fd), str(os.getpid())]
    subprocess.Popen(
        [*command, "python", "-m", "rankwise.watch", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[segment.fd],
        start_new_session=True,
    ).returncode = 0  # nobody waits for it


def main(argv: Sequence[str]) -> None:
    """Wait for the process, and write the trace. argv: file, descriptor of the segment, pid, the program's command."""
    from rankwise.observe.trace_file import trace_of

    path, fd, pid, *command = argv
    if os.getppid() == int(pid):
        select.select([os.pidfd_open(int(pid))], [], [])
    view = SegmentView(int(fd))
    ranks = range(view.world_size)
    failure = _watch.failure(Segment.attach(int(fd))) or None
    ended = [None if failure is None else "ended with the job" for _ in ranks]
    trace_of(int(fd), command, ended, [b""] * len(ranks), failure).write(Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
