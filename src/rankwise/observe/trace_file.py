"""The trace file of a job, written by `rankwise run` and read by `rankwise trace`: JSON, times in ns since the epoch.

format      "rankwise trace 4"
command     the command that was run
started, written    when the job started, and when this file was written
failure     a sentence about the job's failure, or null
losses      the ranks that were lost, in order, with the fields of `Loss`
clocks      for each node but node 0, the fields of `Clock`: all times in this file are on node 0's clock
ranks       for each rank:
    rank, pid, ended    ended: how its process ended, or null
    host        the name of its host, or "" if the job has one node
    where       a description of where it was at the end
    operations  its last operations, about a thousand, with the fields of `TracedOperation`
    spans       the spans that the program added with rankwise.trace, with the fields of `Span`
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from rankwise._native import SegmentView
from rankwise.system import files

FORMAT = "rankwise trace 4"


@dataclass(frozen=True)
class TracedOperation:
    """The fields of rankwise._native.Operation, which documents them. end: None if it was still running."""

    number: int
    name: str
    group: int
    group_name: str
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
    part: bool = False


@dataclass(frozen=True)
class Clock:
    """A node's clock. offset: what was added to the node's times, in ns; within: how far they may still be off."""

    node: int
    host: str
    offset: int
    within: int


@dataclass(frozen=True)
class Span:
    """What a program did from begin to end; lane: the row that it is shown in."""

    lane: str
    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Loss:
    """A process that was lost. at: when, in ns since the epoch; replaced: whether the rank was started again."""

    rank: int
    pid: int
    how: str
    at: int
    replaced: bool


@dataclass(frozen=True)
class RankTrace:
    rank: int
    pid: int
    ended: str | None
    where: str
    operations: list[TracedOperation]
    spans: list[Span]
    host: str = ""

    @property
    def calls(self) -> list[TracedOperation]:
        """Its operations but for the rendezvous."""
        return [operation for operation in self.operations if operation.name != "init"]


@dataclass(frozen=True)
class Trace:
    command: list[str]
    started: int
    written: int
    failure: str | None
    losses: list[Loss]
    ranks: list[RankTrace]
    clocks: list[Clock] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The content of the file."""
        return json.dumps({"format": FORMAT, **vars(self)}, default=vars, separators=(",", ":"))

    def write(self, path: Path) -> None:
        """Write the file, which only this user can read.

        Raises OSError if that fails, or if somebody else could have put there what it would write to: a symbolic link,
        or another user's file.
        """
        with open(path, "w", encoding="utf-8", opener=files.own) as file:
            file.write(self.text)

    def with_nodes(self, others: Iterable[tuple[Clock, Trace]]) -> Trace:
        """This trace of node 0, with the ranks and losses of the other nodes added, their times on node 0's clock."""
        ranks, losses, clocks = list(self.ranks), list(self.losses), []
        for clock, other in others:
            ranks += [_shifted_rank(rank, clock.offset) for rank in other.ranks]
            losses += [replace(loss, at=loss.at + clock.offset) for loss in other.losses]
            clocks.append(clock)
        losses.sort(key=lambda loss: loss.at)
        return replace(self, ranks=ranks, losses=losses, clocks=clocks)

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Read the file. Raises OSError if it is missing, and ValueError if it is not a trace of this version."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), path)
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"{path} is not a trace: expected a file that rankwise run --trace wrote") from None

    @classmethod
    def parse(cls, text: str, source: object) -> Trace:
        """The trace whose file has this content. source: what the text comes from, for the error."""
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"{source} has the format {data['format']!r}, expected {FORMAT!r}")
        ranks = [
            RankTrace(
                rank["rank"],
                rank["pid"],
                rank["ended"],
                rank["where"],
                [TracedOperation(**operation) for operation in rank["operations"]],
                [Span(**span) for span in rank["spans"]],
                rank["host"],
            )
            for rank in data["ranks"]
        ]
        losses = [Loss(**loss) for loss in data["losses"]]
        clocks = [Clock(**clock) for clock in data["clocks"]]
        return cls(data["command"], data["started"], data["written"], data["failure"], losses, ranks, clocks)


def _shifted_rank(rank: RankTrace, offset: int) -> RankTrace:
    """The same rank with `offset` ns added to all times."""

    def later(at: int | None) -> int | None:
        return None if at is None else at + offset

    operations = [replace(each, begin=each.begin + offset, end=later(each.end)) for each in rank.operations]
    spans = [replace(each, begin=each.begin + offset, end=each.end + offset) for each in rank.spans]
    return replace(rank, operations=operations, spans=spans)


def trace_of(
    segment_fd: int,
    command: Sequence[str],
    ended: Sequence[str | None],
    spans: Sequence[bytes],
    failure: str | None,
    losses: Sequence[Loss] = (),
    first: int = 0,
    host: str = "",
) -> Trace:
    """The trace of a job, read from its shared memory. ended, spans: for each rank, as for rank_trace.

    first: the number of the segment's first rank; not 0 on a node other than node 0. host: the name of the host if the
    job has several nodes.
    """
    view = SegmentView(segment_fd)
    ranks = [
        replace(rank_trace(view, index, how, lines), rank=first + index, host=host)
        for index, (how, lines) in enumerate(zip(ended, spans, strict=True))
    ]
    return Trace(list(command), view.started, time.time_ns(), failure, list(losses), ranks)


def rank_trace(view: SegmentView, rank: int, ended: str | None, spans: bytes) -> RankTrace:
    """The trace of one rank. ended: how its process ended, or None. spans: lines that rankwise.trace wrote."""
    names = [each.name for each in fields(TracedOperation)]
    operations = [
        TracedOperation(**{name: getattr(operation, name) for name in names}) for operation in view.operations(rank)
    ]
    state = view.state(rank)
    return RankTrace(rank, state.pid, ended, state.description, operations, _spans(spans))


def _spans(lines: bytes) -> list[Span]:
    spans: list[Span] = []
    for line in lines.splitlines():
        try:
            spans.append(Span(*json.loads(line)))
        except (ValueError, TypeError):  # the incomplete last line of a rank that died while writing
            continue
    return spans
