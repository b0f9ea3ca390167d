"""The first line of a trace's report: what went wrong first and who was waited for, or that nothing failed."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.contract.ranks import ranks_in_words
from rankwise.observe.trace_file import Trace, TracedOperation
from rankwise.system.words import duration
from rankwise.tools.stragglers import GroupOperation


def headline(trace: Trace, found: list[GroupOperation]) -> str:
    """One line. found: the trace's `group_operations`."""
    count = sum(not operation.part for rank in trace.ranks for operation in rank.calls)
    work = f"{count} operations recorded in {duration((trace.written - trace.started) / 1e9)}"
    if trace.failure is not None:
        waits = min([*_collectives(trace, found), *_messages(trace)], default=(False, 0, ""))[-1]
        return trace.failure.splitlines()[0] + waits
    if trace.losses:
        first = trace.losses[0]
        after = duration((first.at - trace.started) / 1e9)
        return f"finished, after rank {first.rank} {first.how} at {after}: {work}"
    return f"nothing failed: {work}"


def _collectives(trace: Trace, found: list[GroupOperation]) -> Iterator[tuple[bool, int, str]]:
    """For each collective that was not completed: False, when the first rank began to wait, and for whom it waited."""
    lost = {loss.rank for loss in trace.losses}
    for each in found:
        absent = [rank for rank in each.late if rank not in each.begun]
        absent = absent or [rank for rank, operation in each.begun.items() if rank in lost and operation.end is None]
        waiting = [rank for rank, operation in each.begun.items() if _incomplete(operation) and rank not in absent]
        if waiting and absent:
            begin = min(each.begun[rank].begin for rank in waiting)
            yield False, begin, f"; {ranks_in_words(waiting)} waited for {ranks_in_words(absent)} in {each.name}"


def _messages(trace: Trace) -> Iterator[tuple[bool, int, str]]:
    """For each message that was not completed: whether it was in the background, when it began, and whom its rank
    waited for. No rank waits for a receive in the background, but one that has timed out counts, as it ends there.
    """
    for rank in trace.ranks:
        for operation in rank.operations:
            # In a group that does not hold all ranks, the trace does not say which rank the peer is.
            if operation.peer is not None and (
                operation.failed or (operation.end is None and not operation.background)
            ):
                whom = "any rank" if operation.peer < 0 else f"rank {operation.peer}"
                where = f" of group {operation.group_name}" if operation.group else ""
                yield (
                    operation.background,
                    operation.begin,
                    f"; rank {rank.rank} waited for {whom}{where} in {operation.name}",
                )


def _incomplete(operation: TracedOperation) -> bool:
    return operation.failed or operation.end is None
