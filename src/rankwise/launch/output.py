"""Multiplexes the output of several ranks into one, in whole lines.

An output stream is one rank's stdout or stderr; a sink is this process's own stdout or stderr. A line
is written to its sink in one piece, when it is complete. A very long one is written in several, while
the lines of other ranks wait, so that bytes pass unchanged. On a terminal an incomplete line (a progress
bar, a prompt) is shown as well; lines of other ranks then appear above it.

A traceback on stderr, with everything that follows it there, is held back until it is released. So the
tracebacks of several ranks do not mix, equal ones are printed once, and the one of the rank to blame
can be printed last.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from contextvars import copy_context

from rankwise.contract.ranks import ranks_in_words
from rankwise.system import files

TYPE_CHECKING = False  # without importing typing, which takes time
if TYPE_CHECKING:
    from typing import TextIO

LONGEST_LINE = 8 << 20  # bytes of an incomplete line kept back; a longer one comes in pieces
MOST_WAITING = 64 << 20  # bytes of other streams that wait for the end of such a line; then it is broken
LONGEST_TAIL = 300  # bytes of a stream's last line
MOST_SHOWN = 16  # tracebacks that are compared with later ones

# A line begins after a newline, and after the carriage return of a progress bar.
_BEGINNINGS = rb"(?s)(?<=\n)(?=.)|(?<=\r)(?=[^\n])"
# The first line of a traceback, of an exception group's traceback, or of a crash report.
_TRACEBACK = (
    rb"(?m)^(?:\[\d+\] )?(?:  \+ Exception Group )?(?:Traceback \(most recent call last\):|Fatal Python error: )"
)
_CLEAR_LINE = b"\r\x1b[K"


class Sink:
    """An output of this process: a text stream such as sys.stdout, or None if there is none."""

    def __init__(self, stream: TextIO | None) -> None:
        self.redirect(stream)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.live = stream is not None and stream.isatty()
        self.unfinished: object = None  # the writer of an incomplete last line, else None
        self.long: OutputStream | None = None  # the stream that is writing a line in pieces
        self.waiting: dict[OutputStream, bytearray] = {}  # the output of others, until that line is complete

    def redirect(self, stream: TextIO | None) -> None:
        """Write to this stream from now on. A notebook shows it below the cell to which the present context belongs."""
        self._stream = stream
        self._context = copy_context()

    def write(self, data: bytes, writer: object) -> None:
        """Write at once. For a stream that takes only text, as in a notebook, the bytes are decoded as UTF-8."""
        stream = self._stream  # another thread may call `redirect` meanwhile
        if stream is None or not data:
            return
        buffer = getattr(stream, "buffer", None)
        if buffer is not None:
            buffer.write(data)
        else:
            self._context.run(stream.write, self._decoder.decode(data))
        self._context.run(stream.flush)
        self.unfinished = None if data.endswith(b"\n") else writer


class OutputStream:
    """One rank's stdout or stderr. `line` is its incomplete line, of which `shown` bytes are on the screen.

    rank: the rank, for a stderr, whose tracebacks are held back; -1 for a stdout. held: a traceback and
    everything after it, held back since `since`.
    """

    def __init__(self, sink: Sink, rank: int = -1, tag: bytes = b"") -> None:
        self.sink = sink
        self.rank = rank
        self.tag = tag
        self.held = bytearray()
        self.since = 0.0
        self.line = bytearray()
        self.shown = 0
        self.ended = False
        self.file: str | None = None
        self.last = b"\n"
        """The last byte that was received, without tags."""
        self.tail = b""
        """The last bytes that were received, without tags."""

    @property
    def last_line(self) -> str:
        """The last line that was received, or its end if it is long; "" if there is none."""
        return (self.tail.decode(errors="replace").strip().splitlines() or [""])[-1]

    def mark(self, data: bytes) -> bytes:
        """`data` with the tag at the beginning of each line."""
        if not self.tag:
            return data
        marked = re.sub(_BEGINNINGS, self.tag, self.last + data)[1:]
        self.last = data[-1:]
        return marked


def _but_for_its_rank(stream: OutputStream) -> bytes:
    """The held text of a stream without the parts that name the rank, so that equal reports compare equal."""
    held = bytes(stream.held).replace(b"\n" + stream.tag, b"\n").removeprefix(stream.tag)
    return held.replace(b"while rank %d was in" % stream.rank, b"while it was in")


class OutputMultiplexer:
    """Writes the output of ranks to two sinks.

    alone: the job has only one rank, on all its nodes, so no lines can mix, and bytes are written as they arrive.
    tag: begin each line with `[rank] `, also of a rank that is alone. folder: where a file for each rank gets all that
    the rank writes, at once and as it is.
    """

    def __init__(
        self,
        out: TextIO | None,
        err: TextIO | None,
        *,
        alone: bool = False,
        tag: bool = False,
        folder: str | None = None,
    ) -> None:
        self._out, self._err = Sink(out), Sink(err)
        self._tag = tag
        self._folder = folder
        self._direct = alone and not tag
        self._streams: list[OutputStream] = []
        self._shown: dict[bytes, set[int]] = {}  # the ranks that have shown each of the latest tracebacks
        self._pairs: dict[int, tuple[OutputStream, OutputStream]] = {}  # each rank's stdout and stderr
        self._open: OutputStream | None = None  # the stream whose incomplete line is on the screen

    def here(self) -> None:
        """Write to what this thread's sys.stdout and sys.stderr are now."""
        self._out.redirect(sys.stdout)
        self._err.redirect(sys.stderr)

    def add(self, rank: int) -> tuple[OutputStream, OutputStream]:
        """The stdout and stderr of a rank."""
        tag = b"[%d] " % rank if self._tag else b""
        pair = OutputStream(self._out, tag=tag), OutputStream(self._err, rank, tag=tag)
        if self._folder is not None:  # a rank that is started again goes on in its file
            pair[0].file = pair[1].file = os.path.join(self._folder, f"rank-{rank}.txt")
        self._streams.extend(pair)
        self._pairs[rank] = pair
        return pair

    def feed(self, stream: OutputStream, data: bytes) -> None:
        """Take `data`, which a rank wrote."""
        stream.tail = (stream.tail + data)[-LONGEST_TAIL:]
        if stream.file is not None:
            with open(stream.file, "ab", opener=files.no_link) as file:
                file.write(data)
        if self._direct:
            stream.sink.write(data, stream)
            return
        data = stream.mark(data)
        cut = data.rfind(b"\n") + 1
        if cut:
            stream.line += data[:cut]
            self._write_line(stream)
        stream.line += data[cut:]
        if b"\r" in stream.line and self._may_show(stream):
            self._show(stream)
        elif len(stream.line) > LONGEST_LINE:
            self._write_line(stream)

    def end(self, stream: OutputStream) -> None:
        """Write the incomplete line of a stream that has ended."""
        stream.ended = True
        self._write_line(stream)
        if stream.sink.long is stream:
            self._end_long(stream.sink)

    def _write_line(self, stream: OutputStream) -> None:
        """Write, or hold, what is not shown yet of the present line."""
        self._lines(stream, bytes(stream.line[stream.shown :]))
        stream.line = bytearray()
        stream.shown = 0

    def forget(self, rank: int) -> None:
        """Write what is held of a rank whose pipes have ended, and drop its streams."""
        self.release(rank)
        self._streams = [stream for stream in self._streams if stream not in self._pairs[rank]]

    def holds(self) -> bool:
        """Whether a traceback is held."""
        return any(stream.held for stream in self._streams)

    def release(self, rank: int | None = None, *, last: int = -1, before: float = float("inf")) -> None:
        """Write the held tracebacks of one rank or of all, equal ones once, and the one of rank `last` at the end.

        One that equals what another rank has already shown is only mentioned. before: only those held since before
        this time (of time.monotonic).
        """
        chosen = [s for s in self._streams if s.held and rank in (None, s.rank) and s.since < before]
        equal: dict[bytes, list[OutputStream]] = {}
        for stream in sorted(chosen, key=lambda stream: stream.since):
            equal.setdefault(_but_for_its_rank(stream), []).append(stream)
        for key, streams in sorted(equal.items(), key=lambda item: any(line.rank == last for line in item[1])):
            ranks = {stream.rank for stream in streams}
            # A rank that shows the same again has a reason. The traceback of the rank to blame must be the last one.
            latest = next(reversed(self._shown), None)
            new = ranks <= self._shown.get(key, ranks) or (last in ranks and key != latest)
            if new:
                self._write(streams[0], bytes(streams[0].held))
            if len(streams) > 1 or not new:
                self.note(f"rankwise: the same from {ranks_in_words(sorted(ranks))}")
            self._shown[key] = self._shown.pop(key, set()) | ranks
            if len(self._shown) > MOST_SHOWN:
                del self._shown[next(iter(self._shown))]
            for stream in streams:
                stream.held = bytearray()

    def flush(self, rank: int | None = None) -> None:
        """Write what is held or incomplete of one rank or of all, because they pause."""
        self.release(rank)
        for stream in self._streams if rank is None else self._pairs[rank]:
            if len(stream.line) > stream.shown:
                self._write_line(stream)
            if stream.sink.long is stream:
                self._end_long(stream.sink)

    def _lines(self, stream: OutputStream, data: bytes) -> None:
        """Write the lines of a stream, or hold them from the beginning of a traceback on."""
        if not stream.held and stream.rank >= 0 and (traceback := re.search(_TRACEBACK, data)):
            self._write(stream, data[: traceback.start()])
            data, stream.since = data[traceback.start() :], time.monotonic()
            stream.held += data
        elif stream.held:
            stream.held += data
        else:
            self._write(stream, data)
        if len(stream.held) > LONGEST_LINE:
            self.release(stream.rank)

    def hides(self) -> bool:
        """Whether `quiet` would show an incomplete line that is not on the screen yet."""
        return any(self._may_show(stream) for stream in self._streams)

    def quiet(self) -> None:
        """After a pause in the output, show an incomplete line unless one of another stream is on the screen."""
        for stream in self._streams:
            if self._may_show(stream):
                self._show(stream)

    def note(self, line: str) -> None:
        """Write a line of the launcher to stderr."""
        self._write(OutputStream(self._err), line.encode(errors="replace") + b"\n")

    def _may_show(self, stream: OutputStream) -> bool:
        return not stream.held and stream.sink.live and self._open in (None, stream) and len(stream.line) > stream.shown

    def _show(self, stream: OutputStream) -> None:
        self._write(stream, bytes(stream.line[stream.shown :]))
        self._open = stream
        overwritten = stream.line.rstrip(b"\r").rfind(b"\r") + 1
        del stream.line[:overwritten]
        stream.shown = len(stream.line)

    def _write(self, stream: OutputStream, data: bytes) -> None:
        if not data:
            return
        sink, below = stream.sink, self._open
        if sink.long not in (None, stream):
            sink.waiting.setdefault(stream, bytearray()).extend(data)
            if sum(map(len, sink.waiting.values())) > MOST_WAITING:
                self._end_long(sink)
            return
        if below is not None and below is not stream and sink.live:
            below.sink.write(_CLEAR_LINE, below)
            sink.write(data if data.endswith(b"\n") else data + b"\n", stream)
            below.sink.write(bytes(below.line), below)
            return
        if below is stream:
            self._open = None
        if sink.unfinished not in (None, stream):  # never join the lines of two ranks
            data = b"\n" + data
        sink.write(data, stream)
        if not data.endswith(b"\n"):
            sink.long = None if sink.live or stream.ended else stream
        elif sink.long is not None:
            self._end_long(sink)

    def _end_long(self, sink: Sink) -> None:
        """The line that was written in pieces is complete, or broken: write what has waited for that."""
        sink.long = None
        waiting, sink.waiting = sink.waiting, {}
        for stream, data in waiting.items():
            self._write(stream, bytes(data))
