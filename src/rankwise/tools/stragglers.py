"""Which rank waited for which, computed from a trace.

All ranks of a group run the same operations, so a group and a sequence number identify an operation.
The others waited for the rank that began it last: each from its own beginning until then, but no
longer than the waiting time that it recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rankwise.contract.ranks import ranks_in_words
from rankwise.observe.trace_file import Trace, TracedOperation


@dataclass(frozen=True)
class GroupOperation:
    """One operation of a group. begun: {rank: its part}; late: the ranks that arrived last or not at all."""

    group: int
    sequence: int
    begun: dict[int, TracedOperation]
    late: tuple[int, ...]

    def waits(self) -> dict[int, int]:
        """How long (ns) each rank waited for the late ones."""
        at = max((self.begun[rank].begin for rank in self.late if rank in self.begun), default=None)
        return {
            rank: operation.waited if at is None else min(at - operation.begin, operation.waited)
            for rank, operation in self.begun.items()
        }

    @property
    def waited(self) -> int:
        """ns, the sum of the times that the other ranks waited for the late ones."""
        return sum(self.waits().values())

    @property
    def name(self) -> str:
        begun = next(iter(self.begun.values()))
        ranks = ranks_in_words({*self.begun, *self.late})
        return f"{begun.name} #{self.sequence}" + (f" of group {begun.group_name} ({ranks})" if self.group else "")


@dataclass
class Straggler:
    """How often a rank was the last to begin an operation, and how long (ns) the others waited for it."""

    rank: int
    times: int = 0
    waited: int = 0
    worst: GroupOperation | None = None


@dataclass
class OperationSummary:
    """All operations of one name, dtype, op and size: the calls of all ranks, the ns spent and waited in them."""

    name: str
    bytes: int
    calls: int = 0
    spent: int = 0
    waited: int = 0
    last: Counter[int] = field(default_factory=Counter)  # how often each rank began last


def group_operations(trace: Trace) -> list[GroupOperation]:
    """The operations for which the trace still holds every rank's part, in the order in which they began.

    An operation that some ranks began and others never did counts too, if the others are known to be in the group.
    Parts of other operations do not count.
    """
    parts: dict[tuple[int, int], dict[int, TracedOperation]] = defaultdict(dict)
    seen: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # group: rank: first known and last number
    for rank in trace.ranks:
        for operation in rank.operations:
            if operation.name == "init" and not operation.part:  # it is in the group even if it never calls anything
                seen[operation.group].setdefault(rank.rank, (1, 0))
            if operation.sequence == 0 or operation.name == "init" or operation.part:
                continue
            parts[operation.group, operation.sequence][rank.rank] = operation
            first, last = seen[operation.group].get(rank.rank, (operation.sequence, operation.sequence))
            seen[operation.group][rank.rank] = (min(first, operation.sequence), max(last, operation.sequence))
    operations = []
    for (group, sequence), begun in parts.items():
        members = seen[group]
        if len(members) < 2 or any(first > sequence for first, _ in members.values()):
            continue
        missing = tuple(rank for rank, (_, last) in members.items() if last < sequence)
        if missing:
            operations.append(GroupOperation(group, sequence, begun, missing))
        elif len(begun) == len(members):
            late = max(begun, key=lambda rank: begun[rank].begin)
            operations.append(GroupOperation(group, sequence, begun, (late,)))
    return sorted(operations, key=lambda each: min(operation.begin for operation in each.begun.values()))


def stragglers(operations: list[GroupOperation], ranks: Iterable[int]) -> list[Straggler]:
    """Each of these ranks; the rank for which the others waited longest comes first."""
    result = {rank: Straggler(rank) for rank in ranks}
    for each in operations:
        for rank in each.late:
            straggler = result[rank]
            straggler.times += 1
            straggler.waited += each.waited // len(each.late)
            if straggler.worst is None or straggler.worst.waited < each.waited:
                straggler.worst = each
    return sorted(result.values(), key=lambda straggler: (-straggler.waited, -straggler.times, straggler.rank))


def waits(trace: Trace, operations: list[GroupOperation]) -> dict[tuple[int, int], int]:
    """How long (ns) each rank waited for each other one: {(waiting, awaited): time}.

    It waited for the ranks that began an operation later, and for the peers of its messages. Those in a group that does
    not hold all ranks are left out, because the trace does not say which ranks the peers are.
    """
    result: dict[tuple[int, int], int] = defaultdict(int)
    for rank_trace in trace.ranks:
        for operation in rank_trace.operations:
            if operation.peer is not None and operation.peer >= 0 and operation.group == 0 and operation.waited:
                result[rank_trace.rank, operation.peer] += operation.waited
    for each in operations:
        for rank, waited in each.waits().items():
            for late in each.late:
                if rank != late:
                    result[rank, late] += waited // len(each.late)
    return dict(result)


def summaries(trace: Trace, operations: list[GroupOperation]) -> list[OperationSummary]:
    """The operations by name, dtype, op and size; those with the longest waits come first."""
    result: dict[tuple[str, int], OperationSummary] = {}
    late = {(each.group, each.sequence): each.late for each in operations}
    for operation in (operation for rank in trace.ranks for operation in rank.calls):
        what = " ".join(
            filter(None, ("within a host:" * operation.part, operation.name, operation.dtype, operation.op))
        )
        kind = result.setdefault((what, operation.bytes), OperationSummary(what, operation.bytes))
        kind.calls += 1
        kind.spent += (trace.written if operation.end is None else operation.end) - operation.begin
        kind.waited += operation.waited
        # Each rank's part counts once, so the rank that began last counts as often as there are parts.
        kind.last.update(late.get((operation.group, operation.sequence), ()) if operation.sequence else ())
    return sorted(result.values(), key=lambda kind: -kind.waited)
