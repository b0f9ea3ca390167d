"""Spans of the program's own work, buffered and sent to the launcher. `rankwise.trace` is their public module."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from contextlib import ContextDecorator
from types import TracebackType

from rankwise.system.settings import SPANS_MEMFD, Settings, is_memory

_MOST = 5_000  # spans buffered in memory
_LIMIT = 200_000  # spans that a process may record; later ones are dropped

_lock = threading.Lock()
_pending: list[tuple[str, str, int, int]] = []  # lane, name, begin and end in ns since the epoch
_kept = 0
_UNKNOWN = -1
_fd: int | None = _UNKNOWN  # until `on` is first called; None: no spans are recorded


def _forked() -> None:
    """In a child: the parent reports the spans so far, and a thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _pending.clear()


os.register_at_fork(after_in_child=_forked)


def on() -> bool:
    """Whether spans are recorded, because this process is a rank of `rankwise run --trace FILE`.

    Example:
        >>> rw.trace.on()
        False
    """
    global _fd
    if _fd == _UNKNOWN:
        with _lock:
            if _fd == _UNKNOWN:  # no other thread has done it meanwhile
                fd = Settings.read().trace_fd
                _fd = fd if is_memory(fd, SPANS_MEMFD) else None
                if _fd is not None:
                    atexit.register(flush)
    return _fd is not None


def add(name: str, begin: int, end: int, lane: str = "program") -> None:
    """Record a span of this rank.

    Args:
        begin: ns since the epoch, as time.time_ns() returns them.
        end: the same.
        lane: the row in which the span is shown. Spans of one lane may be nested.

    Raises:
        ValueError: the span ends before it begins.

    Example:
        >>> import time
        >>> begin = time.time_ns()
        >>> rw.trace.add("forward", begin, time.time_ns(), lane="compute")
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
    """Records how long a `with` block, or each call of a decorated function, takes.

    Args:
        lane: the row in which the span is shown; threads that add spans at the same time need one each.

    Example:
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
    """Write the buffered spans. This also happens automatically when the process ends."""
    with _lock:
        spans, _pending[:] = list(_pending), []
        if _fd is None or not spans:
            return
        lines = "".join(json.dumps(each) + "\n" for each in spans).encode()
        # Opened again in append mode, so that processes that share this memory do not overwrite each other.
        with open(f"/proc/self/fd/{_fd}", "ab", buffering=0) as file:
            file.write(lines)
