"""The standard input of the ranks: one of them inherits the launcher's, or each gets a copy of it."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

ALL = "all"
PIECE = 1 << 16  # bytes that are read at a time
MOST_BEHIND = 1024  # pieces that wait for a rank to read them, before no more are read


class StandardInput:
    """reader: the rank that inherits it, ALL for a copy to each, or None. selector: its loop calls what it is given."""

    def __init__(self, reader: int | str | None, selector: selectors.BaseSelector) -> None:
        self._reader = reader
        self._selector = selector
        self._queues: dict[int, deque[bytes]] = {}  # for each rank's pipe what is still to be written; b"" is the end
        self._reads = False  # the selector watches standard input
        self._ended = False

    @contextmanager
    def of(self, rank: int) -> Iterator[int | None]:
        """What subprocess.Popen takes as a rank's stdin. One that is started again gets what is read from then on."""
        if self._reader != ALL:
            yield None if rank == self._reader else subprocess.DEVNULL
            return
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        self._queues[writes] = deque()
        if self._ended:
            self._put(writes, b"")
        try:
            yield reads
        finally:
            os.close(reads)

    def read_on(self) -> None:
        """Read, for the ranks that have been started, until the end or until one of them is too far behind."""
        while self._queues and not self._ended and not self._reads:
            if max(map(len, self._queues.values())) >= MOST_BEHIND:
                break
            try:
                self._selector.register(0, selectors.EVENT_READ, self._read)
                self._reads = True
            except PermissionError:  # a file, which can be read at any time
                self._take()

    def close(self) -> None:
        for writes in self._queues:
            os.close(writes)
        self._queues.clear()

    def _read(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._reads = False
        self._take()
        self.read_on()

    def _take(self) -> None:
        data = os.read(0, PIECE)
        self._ended = not data
        for writes in self._queues:
            self._put(writes, data)

    def _put(self, writes: int, data: bytes) -> None:
        queue = self._queues[writes]
        if not queue:
            self._selector.register(writes, selectors.EVENT_WRITE, self._write)
        queue.append(data)

    def _write(self, writes: int) -> None:
        queue = self._queues[writes]
        piece = queue.popleft()
        try:
            rest = piece[os.write(writes, piece) :]
        except BrokenPipeError:  # the rank has closed it, or has ended
            piece = rest = b""
        if rest:
            queue.appendleft(rest)
        if not queue or not piece:
            self._selector.unregister(writes)
        if not piece:
            del self._queues[writes]
            os.close(writes)
        self.read_on()
