"""A failure as a value: what happened, to whom and where, from which the texts of errors are made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rankwise.contract import stacks
from rankwise.contract.failure_kinds import ERROR, LOST, MISMATCH, TIMEOUT
from rankwise.contract.ranks import ranks_in_words


@dataclass(frozen=True)
class AtRank:
    """One rank in a failure. call: what it called, or where it is; site: the call's "file:line"; stack: its stacks."""

    call: str = ""
    site: str = ""
    stack: str = ""

    @property
    def text(self) -> str:
        return f"{self.call} at {self.site}" if self.site else self.call


@dataclass(frozen=True)
class Failure:
    """Why a group, or a program, failed.

    kind: one of failure_kinds. message: the text of the error. operation, sequence: the operation in which
    it was found. ranks: what each rank did, as far as it is known. to_blame: the lost rank, the ranks whose call
    differs from most ranks' call, or the ranks that did not come. how, host, pid: how the lost rank ended, and its
    process. limit: the timeout in seconds. All ranks are numbered in the group that failed.
    """

    kind: str
    message: str = ""
    operation: str = ""
    sequence: int = -1
    ranks: Mapping[int, AtRank] = field(default_factory=dict)
    to_blame: tuple[int, ...] = ()
    how: str = ""
    host: str = ""
    pid: int = 0
    limit: float = 0.0

    @property
    def summary(self) -> str:
        """One line: the first line of the message; for a mismatch with the calls."""
        headline = self.message.partition("\n")[0]
        if self.kind != MISMATCH or not self.ranks:
            return headline
        callers: dict[str, list[int]] = {}
        for rank, at in sorted(self.ranks.items()):
            callers.setdefault(at.text, []).append(rank)
        calls = [f"{ranks_in_words(ranks)} {call}" for call, ranks in callers.items()]
        return f"{headline}: {', '.join(calls)}" if len(calls) > 1 else headline

    def renumbered(self, ranks: Sequence[int]) -> Failure:
        """The same failure, as one of a group in which this group's ranks are `ranks`. The message is the same."""
        at_ranks = {ranks[rank]: at for rank, at in sorted(self.ranks.items())}
        return replace(self, ranks=at_ranks, to_blame=tuple(ranks[rank] for rank in self.to_blame))

    def found_in(self, operation: str, sequence: int = -1) -> Failure:
        """The same failure, found in this operation, with the message that the fields make."""
        located = replace(self, operation=operation, sequence=sequence)
        return replace(located, message=text(located))

    def to_json(self) -> str:
        """The fields that are known."""
        import json  # only a rank that fails needs it

        known = {name: value for name, value in asdict(self).items() if value != getattr(_UNKNOWN, name)}
        return json.dumps(known, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: str | bytes) -> Failure:
        import json

        return cls.of(**json.loads(data))

    @classmethod
    def of(cls, *, ranks: Mapping[Any, dict[str, str]] = {}, to_blame: Iterable[int] = (), **known: Any) -> Failure:
        """A failure with these fields. ranks and to_blame may have the types that JSON has for them."""
        return cls(ranks={int(rank): AtRank(**at) for rank, at in ranks.items()}, to_blame=tuple(to_blame), **known)


_UNKNOWN = Failure("")


def failure_behind(error: BaseException | None) -> Failure | None:
    """The failure of a group that this error is, or from which it follows; None if there is none.

    It is found along `__cause__` and `__context__`, even if `raise ... from None` hides it from the traceback.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        failure = getattr(error, "failure", None)
        if isinstance(failure, Failure) and failure.kind != ERROR:
            return failure
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def text(failure: Failure) -> str:
    """The message that the fields of a failure make."""
    where = failure.operation + (f" #{failure.sequence}" if failure.sequence >= 0 else "")
    ranks = sorted(failure.ranks.items())
    if failure.kind == LOST:
        process = f" (pid {failure.pid} on {failure.host})" if failure.pid else ""
        who = ranks_in_words(failure.to_blame) + process if failure.to_blame else "a rank"
        return f"{who} was lost{f' in {where}' if where else ''}: {failure.how or 'it is not known how'}"
    if failure.kind == TIMEOUT:
        who = ranks_in_words(failure.to_blame) if failure.to_blame else "a rank"
        lines = [f"{who} did not come to {where} within the timeout of {failure.limit:g} s"]
        lines += [f"  rank {rank}: {at.text}" for rank, at in ranks if at.call]
        return "\n".join(lines) + stacks.in_words({rank: at.stack for rank, at in ranks if at.stack})
    if failure.kind == MISMATCH:
        different = differences({rank: at.call for rank, at in ranks})
        marks = {rank: f"   <-- other {what}" for rank, what in different.items()}
        lines = [
            "the ranks called different operations"
            + (f" (operation #{failure.sequence})" if failure.sequence >= 0 else "")
        ]
        lines += [f"  rank {rank}: {at.text}{marks.get(rank, '')}" for rank, at in ranks]
        return "\n".join(lines)
    return failure.message


def differences(calls: Mapping[int, str]) -> dict[int, str]:
    """What differs between a rank's call and most ranks' call: {1: "count, dtype"}. In a tie the lowest rank's counts.

    calls: for each rank a call such as "all_reduce(count=4, dtype=float32, op=sum)".
    """
    texts = list(calls.values())
    if not texts:
        return {}
    usual = _arguments(max(texts, key=texts.count))  # the first of several
    different = {}
    for rank, call in calls.items():
        own = _arguments(call)
        if own["operation"] != usual["operation"]:
            different[rank] = "operation"
        elif differing := [name for name in usual | own if own.get(name) != usual.get(name)]:
            different[rank] = ", ".join(differing)
    return different


def _arguments(call: str) -> dict[str, str]:
    operation, _, arguments = call.partition("(")
    return {"operation": operation} | dict(re.findall(r"(\w+)=(\[.*?\]|\(.*?\)|[^,()]+)", arguments))
