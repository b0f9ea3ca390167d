"""What a program does between its operations, for the trace of the job: `rankwise.trace`.

>>> with rw.trace.span("forward"):
...     loss = sum(number**2 for number in range(1000))

`rankwise run --trace FILE` writes the last operations of each rank and these spans to FILE, and
`rankwise trace FILE` shows them side by side. Without --trace a span costs next to nothing and is
forgotten. Spans are kept in memory and handed over when the process ends, or there are many.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from contextlib import ContextDecorator
from types import TracebackType

from rankwise.contract.settings import SPANS_MEMFD, Settings

__all__ = ["add", "on", "span"]

_MOST = 5_000  # spans kept in memory
_LIMIT = 200_000  # spans of a process altogether; later ones are dropped

_lock = threading.Lock()
_pending: list[tuple[str, str, int, int]] = []  # lane, name, begin and end in ns since the epoch
_kept = 0
_fd: int | None = None
_pid = 0  # of the process for which _fd was looked up


def on() -> bool:
    """Whether spans are kept: whether this process is a rank of `rankwise run --trace FILE`."""
    global _fd, _pid
    if _pid != os.getpid():
        with _lock:
            if _pid != os.getpid():  # no other thread was faster
                _pending.clear()  # a forked child's are its parent's to tell
                _fd, _pid = _descriptor(), os.getpid()
                if _fd is not None:
                    atexit.register(flush)
    return _fd is not None


def add(name: str, begin: int, end: int, lane: str = "program") -> None:
    """Keep a span of this rank. begin, end: ns since the epoch, as time.time_ns().

    lane: the row that it is shown in. Spans of one lane may lie within each other. ValueError where
    it ends before it begins.
    """
    if end < begin:
        raise ValueError(f"end={end}: expected not before begin={begin}")
    if not on():
        return
    global _kept
    with _lock:
        if _kept < _LIMIT:
            _kept += 1
            _pending.append((lane, name, begin, end))
        full = len(_pending) >= _MOST
    if full:
        flush()


class span(ContextDecorator):
    """Keeps how long a `with` block, or each call of a function that it decorates, takes.

    lane: the row that it is shown in, one for each thread that adds spans at the same time.

    >>> with rw.trace.span("forward", lane="compute"):
    ...     total = sum(range(1000))
    """

    def __init__(self, name: str, lane: str = "program") -> None:
        self.name = name
        self.lane = lane
        self._begun = threading.local()  # a stack: a decorated function may call itself

    def __enter__(self) -> span:
        if on():
            stack = self._begun.__dict__.setdefault("stack", [])
            stack.append(time.time_ns())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if stack := self._begun.__dict__.get("stack"):
            begin = stack.pop()
            add(self.name, begin, max(begin, time.time_ns()), self.lane)


def flush() -> None:
    """Hand over what is kept. At the end of the process it happens by itself."""
    with _lock:
        spans, _pending[:] = list(_pending), []
        if _fd is None or _pid != os.getpid() or not spans:
            return
        lines = "".join(json.dumps(each) + "\n" for each in spans).encode()
        # Opened anew, for appending: whatever else has this memory open writes behind us, not over us.
        with open(f"/proc/self/fd/{_fd}", "ab", buffering=0) as file:
            file.write(lines)


def _descriptor() -> int | None:
    fd = Settings.read().trace_fd
    try:
        if fd is not None and os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{SPANS_MEMFD} "):
            return fd
    except OSError:  # a process that a rank started, with the rank's variables but not its descriptors
        return None
    return None
