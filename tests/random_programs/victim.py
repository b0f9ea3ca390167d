"""What a fault does to its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from random_programs.program import Fault
from random_programs.waits import SOON


class Interrupted(KeyboardInterrupt):
    """What the signal handler raises."""


class Victim:
    """Does to this rank what its fault says."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._helper: subprocess.Popen[bytes] | None = None
        self._raised = False

    def __enter__(self) -> Victim:
        if self._fault is not None and self._fault.kind in ("interrupt", "abort"):

            def handler(signum: int, frame: object) -> None:
                self._raised = True
                raise Interrupted

            signal.signal(signal.SIGALRM, handler)
        return self

    def begin(self) -> None:
        after, pid = self._fault.after / 1e3, os.getpid()
        match self._fault.kind:
            case "kill":
                if not after:
                    os.kill(pid, signal.SIGKILL)
                threading.Thread(target=lambda: (time.sleep(after), os.kill(pid, signal.SIGKILL)), daemon=True).start()
            case "stop":
                script = f"sleep {after}; kill -STOP {pid}; sleep 0.4; kill -CONT {pid}"
                self._helper = subprocess.Popen(["sh", "-c", script])
            case "interrupt" | "abort":
                signal.setitimer(signal.ITIMER_REAL, max(after, 1e-5))

    def end(self) -> None:
        """The last step is over."""
        if self._fault is None:
            return
        if self._fault.kind == "stop":
            if self._helper is not None:
                self._helper.wait()
        else:  # the fault is still to come, or Python has ignored what was raised where nobody can catch it
            end = time.monotonic() + SOON
            while not self._raised and time.monotonic() < end:
                time.sleep(0.01)

    def __exit__(self, *error: object) -> None:
        if self._fault is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
