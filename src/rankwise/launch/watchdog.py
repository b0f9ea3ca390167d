"""The *watchdog* of a job: a shell that only waits for its launcher to die, and then kills the groups of the ranks."""

from __future__ import annotations

import os
import subprocess

# Reads process ids, one per line, until end-of-file: when the launcher has ended, and so has every rank that had not
# yet run its command.
_PROGRAM = 'groups=; while read -r pid; do groups="$groups -$pid"; done; [ -z "$groups" ] || kill -KILL $groups'


class Watchdog:
    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a signal to the launcher's group must not end it
            bufsize=0,
        )

    def add(self, pid: int) -> None:
        """Watch the group whose first process is `pid`. The launcher calls this, or the new process itself."""
        assert self._shell.stdin is not None
        os.write(self._shell.stdin.fileno(), b"%d\n" % pid)

    def end(self) -> None:
        """End the watchdog when the job is over; it leaves the groups alone."""
        self._shell.kill()
        self._shell.communicate()
