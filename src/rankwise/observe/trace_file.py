"""The file that `rankwise run` writes of a job, and `rankwise trace` reads: JSON, all times in ns since the epoch.

format      "rankwise trace 1"
command     the words that were run
started, written    when the job began, and when this was written
failure     why the job failed, in words, or null
ranks       of each rank:
    rank, pid, ended    ended: how its process ended, or null
    where       where it was at last, in words
    operations  the last, about a thousand, each with the names of `Operation`
    spans       what the program added by rankwise.trace, each with the names of `Span`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rankwise._native import SegmentView

FORMAT = "rankwise trace 1"


@dataclass(frozen=True)
class Operation:
    """As rankwise._native.Operation, whose docstrings say what each is. end: None where it was under way."""

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
    operations: list[Operation]
    spans: list[Span]


@dataclass(frozen=True)
class Trace:
    command: list[str]
    started: int
    written: int
    failure: str | None
    ranks: list[RankTrace]

    def write(self, path: Path) -> None:
        """OSError where that cannot be."""
        text = json.dumps({"format": FORMAT, **vars(self)}, default=vars, separators=(",", ":"))
        path.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Trace:
        """OSError where there is no such file; ValueError where it is no trace of this version."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"{path} is of the format {data['format']!r}, expected {FORMAT!r}")
            ranks = [
                RankTrace(
                    rank["rank"],
                    rank["pid"],
                    rank["ended"],
                    rank["where"],
                    [Operation(**operation) for operation in rank["operations"]],
                    [Span(**span) for span in rank["spans"]],
                )
                for rank in data["ranks"]
            ]
            return cls(data["command"], data["started"], data["written"], data["failure"], ranks)
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"{path} is no trace: expected a file that rankwise run --trace wrote") from None


def rank_trace(view: SegmentView, rank: int, ended: str | None, spans: bytes) -> RankTrace:
    """What the segment says of a rank. spans: lines that rankwise.trace wrote."""
    names = [each.name for each in fields(Operation)]
    operations = [
        Operation(**{name: getattr(operation, name) for name in names}) for operation in view.operations(rank)
    ]
    state = view.state(rank)
    return RankTrace(rank, state.pid, ended, state.words, operations, _spans(spans))


def _spans(lines: bytes) -> list[Span]:
    found: list[Span] = []
    for line in lines.splitlines():
        try:
            found.append(Span(*json.loads(line)))
        except (ValueError, TypeError):  # the last line of a rank that died as it wrote
            continue
    return found


def has_operations(ranks: Sequence[RankTrace]) -> bool:
    """Whether any rank has done more than to meet the others."""
    return any(operation.name != "init" for rank in ranks for operation in rank.operations)
