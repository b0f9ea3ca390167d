"""The trace file of a job, written by `rankwise run` and read by `rankwise trace`: JSON, times in ns since the epoch.

format      "rankwise trace 1"
command     the command that was run
started, written    when the job started, and when this file was written
failure     a sentence about the job's failure, or null
ranks       for each rank:
    rank, pid, ended    ended: how its process ended, or null
    where       a description of where it was at the end
    operations  its last operations, about a thousand, with the fields of `TracedOperation`
    spans       the spans that the program added with rankwise.trace, with the fields of `Span`
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rankwise._native import SegmentView

FORMAT = "rankwise trace 1"


@dataclass(frozen=True)
class TracedOperation:
    """The fields of rankwise._native.Operation, which documents them. end: None if it was still running."""

    number: int
    name: str
    group: int
    sequence: int
    dtype: str | None
    op: str | None
    root: int | None
    peer: int | None
    tag: int | None
    bytes: int
    begin: int
    end: int | None
    waited: int
    failed: bool
    background: bool


@dataclass(frozen=True)
class Span:
    """What a program did from begin to end; lane: the row that it is shown in."""

    lane: str
    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class RankTrace:
    rank: int
    pid: int
    ended: str | None
    where: str
    operations: list[TracedOperation]
    spans: list[Span]


@dataclass(frozen=True)
class Trace:
    command: list[str]
    started: int
    written: int
    failure: str | None
    ranks: list[RankTrace]

    def write(self, path: Path) -> None:
        """Write the file. Raises OSError if that fails."""
        text = json.dumps({"format": FORMAT, **vars(self)}, default=vars, separators=(",", ":"))
        path.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Read the file. Raises OSError if it is missing, and ValueError if it is not a trace of this version."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"{path} has the format {data['format']!r}, expected {FORMAT!r}")
            ranks = [
                RankTrace(
                    rank["rank"],
                    rank["pid"],
                    rank["ended"],
                    rank["where"],
                    [TracedOperation(**operation) for operation in rank["operations"]],
                    [Span(**span) for span in rank["spans"]],
                )
                for rank in data["ranks"]
            ]
            return cls(data["command"], data["started"], data["written"], data["failure"], ranks)
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"{path} is not a trace: expected a file that rankwise run --trace wrote") from None


def trace_of(
    segment_fd: int, command: Sequence[str], ended: Sequence[str | None], spans: Sequence[bytes], failure: str | None
) -> Trace:
    """The trace of a job, read from its shared memory. ended, spans: for each rank, as for rank_trace."""
    view = SegmentView(segment_fd)
    ranks = [rank_trace(view, rank, how, lines) for rank, (how, lines) in enumerate(zip(ended, spans, strict=True))]
    return Trace(list(command), view.started, time.time_ns(), failure, ranks)


def rank_trace(view: SegmentView, rank: int, ended: str | None, spans: bytes) -> RankTrace:
    """The trace of one rank. ended: how its process ended, or None. spans: lines that rankwise.trace wrote."""
    names = [each.name for each in fields(TracedOperation)]
    operations = [
        TracedOperation(**{name: getattr(operation, name) for name in names}) for operation in view.operations(rank)
    ]
    state = view.state(rank)
    return RankTrace(rank, state.pid, ended, state.description, operations, _spans(spans))


def _spans(lines: bytes) -> list[Span]:
    found: list[Span] = []
    for line in lines.splitlines():
        try:
            found.append(Span(*json.loads(line)))
        except (ValueError, TypeError):  # the incomplete last line of a rank that died while writing
            continue
    return found


def has_operations(ranks: Sequence[RankTrace]) -> bool:
    """Whether any rank has called an operation after the rendezvous."""
    return any(operation.name != "init" for rank in ranks for operation in rank.operations)
