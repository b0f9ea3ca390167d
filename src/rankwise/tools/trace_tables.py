"""The first line of a trace's report, and its tables, as rows of text; the first row of each is its header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rankwise.contract.ranks import count_of_ranks, ranks_in_words
from rankwise.observe.trace_file import Trace, TracedOperation
from rankwise.system.texts import amount, duration
from rankwise.tools.layout import one_line
from rankwise.tools.stragglers import GroupOperation, stragglers, summaries

Rows = list[tuple[str, ...]]


def heading(trace: Trace, width: int) -> str:
    """How many ranks ran what for how long, in at most `width` characters."""
    head = f"{count_of_ranks(len(trace.ranks))} for {duration((trace.written - trace.started) / 1e9)}: "
    return head + one_line(" ".join(trace.command), width - len(head))


def last_to_begin(trace: Trace, group_operations: list[GroupOperation]) -> Rows:
    """How often each rank was the last to begin an operation, and how long the others waited for it."""
    rows: Rows = [("rank", "came last", "", "others waited", "longest")]
    for straggler in stragglers(group_operations, [rank.rank for rank in trace.ranks]):
        worst = (
            f"{duration(straggler.worst.waited / 1e9)} in {straggler.worst.name}"
            if straggler.worst and straggler.worst.waited
            else ""
        )
        share = f"{100 * straggler.times / len(group_operations):.0f} %"
        rows.append((str(straggler.rank), str(straggler.times), share, duration(straggler.waited / 1e9), worst))
    return rows


def operations(trace: Trace, group_operations: list[GroupOperation]) -> Rows:
    """The operations by name and size; those with the longest waits come first."""
    rows: Rows = [("operation", "size", "calls", "mean", "waiting", "mostly last")]
    for kind in summaries(trace, group_operations):
        rows.append(
            (
                kind.name,
                amount(kind.bytes) if kind.bytes else "",
                str(kind.calls),
                duration(kind.spent / kind.calls / 1e9),
                f"{100 * min(1.0, kind.waited / kind.spent):.0f} %" if kind.spent else "",
                f"rank {kind.last.most_common(1)[0][0]}" if kind.last else "",
            )
        )
    return rows


def ranks(trace: Trace) -> Rows:
    """How each rank spent the recorded time: with operations in progress, only in the background or not, or without.

    An operation is in the background while the program does not wait for it. Where several are in progress at once, the
    time counts once.
    """
    rows: Rows = [("rank", "operations", "in them", "waiting", "in background", "outside", "")]
    for rank in trace.ranks:
        calls = [each for each in rank.calls if not each.part]
        if not calls:
            continue
        ends = [each.end or trace.written for each in calls] + [span.end for span in rank.spans]
        if rank.ended != "exited with status 0":
            ends.append(max((loss.at for loss in trace.losses if loss.rank == rank.rank), default=trace.written))
        begin, end = min(each.begin for each in calls), max(ends)
        inside = _covered((each.begin, each.end or trace.written) for each in calls if not each.background)
        whole = _covered((each.begin, each.end or trace.written) for each in calls)
        waiting = min(inside, sum(each.waited for each in calls))
        outside = end - begin - whole
        times = (duration(time / 1e9) for time in (inside, waiting, whole - inside, outside))
        rows.append((str(rank.rank), str(len(calls)), *times, f"{100 * outside / max(1, end - begin):.0f} %"))
    return rows


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of these intervals."""
    length = until = 0
    for begin, end in sorted(intervals):
        length += max(0, end - max(begin, until))
        until = max(until, end)
    return length


def spans(trace: Trace) -> Rows:
    """The program's spans by name and lane, those that took the most time first."""
    rows: Rows = [("span", "lane", "times", "mean", "on all ranks", "most")]
    each_rank: dict[tuple[str, str], dict[int, list[int]]] = {}
    for rank in trace.ranks:
        for span in rank.spans:
            lengths = each_rank.setdefault((span.name, span.lane), {}).setdefault(rank.rank, [])
            lengths.append(span.end - span.begin)
    totals = {
        kind: {rank: sum(lengths) for rank, lengths in lengths_of.items()} for kind, lengths_of in each_rank.items()
    }
    for kind, total in sorted(totals.items(), key=lambda item: -sum(item[1].values())):
        times, most = sum(map(len, each_rank[kind].values())), max(total, key=lambda rank: total[rank])
        mean, whole, longest = (
            duration(t / 1e9) for t in (sum(total.values()) / times, sum(total.values()), total[most])
        )
        rows.append((*kind, str(times), mean, whole, f"{longest} on rank {most}"))
    return rows


# ---- the first line: what went wrong first and who was waited for, or that nothing failed ----


def headline(trace: Trace, operations: list[GroupOperation]) -> str:
    """One line. operations: the trace's `group_operations`."""
    count = sum(not operation.part for rank in trace.ranks for operation in rank.calls)
    work = f"{count} operations recorded in {duration((trace.written - trace.started) / 1e9)}"
    if trace.failure is not None:
        waits = min([*_collectives(trace, operations), *_messages(trace)], default=(False, 0, ""))[-1]
        return trace.failure.splitlines()[0] + waits
    if trace.losses:
        first = trace.losses[0]
        after = duration((first.at - trace.started) / 1e9)
        return f"finished, after rank {first.rank} {first.how} at {after}: {work}"
    return f"nothing failed: {work}"


def _collectives(trace: Trace, operations: list[GroupOperation]) -> Iterator[tuple[bool, int, str]]:
    """For each collective that was not completed: False, when the first rank began to wait, and for whom it waited."""
    lost = {loss.rank for loss in trace.losses}
    for each in operations:
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
