"""A trace in the trace event format, which Perfetto and Chrome (chrome://tracing) show.

Each rank appears as a process. Its rows show the collectives, the messages, with hierarchical their parts within the
host, and each lane that the program named. Slices within an operation show how long it waited for other ranks and how
long it moved data. A trace records these durations but not when they began; the wait is drawn first, because a rank
usually waits first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rankwise.observe.trace_file import RankTrace, Trace, TracedOperation

WAITING, MOVING = "terrible", "good"  # Chrome's names of colours: red and green

Event = dict[str, Any]


def timeline(trace: Trace) -> dict[str, Any]:
    """The JSON object of the trace event format; times are in us since its first event."""
    begins = [operation.begin for rank in trace.ranks for operation in rank.operations]
    begins += [span.begin for rank in trace.ranks for span in rank.spans]
    zero = min(begins, default=trace.started)
    events: list[Event] = []
    for rank in trace.ranks:
        ended = f", {rank.ended}" if rank.ended and rank.ended != "exited with status 0" else ""
        on_host = f" on {rank.host}" if rank.host else ""
        name = f"rank {rank.rank} (pid {rank.pid}{on_host}{ended})"
        events.append(_meta("process_name", rank.rank, 0, {"name": name}))
        events.append(_meta("process_sort_index", rank.rank, 0, {"sort_index": rank.rank}))
        events += _rank(rank, zero, trace.written)
    for loss in trace.losses:
        again = "; started again" if loss.replaced else ""
        events.append(_instant(f"lost: {loss.how}{again}", loss.rank, loss.at - zero))
    about = {"command": trace.command, "failure": trace.failure, "clocks": [vars(clock) for clock in trace.clocks]}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _rank(rank: RankTrace, zero: int, until: int) -> Iterable[Event]:
    # Numbered operations within init are parts of the rendezvous, which is drawn as a whole.
    drawn = [operation for operation in rank.operations if not (operation.name == "init" and operation.sequence)]
    parts = [operation for operation in drawn if operation.part]
    collectives = [operation for operation in drawn if operation.peer is None and not operation.part]
    messages = [operation for operation in drawn if operation.peer is not None and not operation.part]
    row = 0
    for title, operations in (("collectives", collectives), ("messages", messages), ("within the host", parts)):
        for number, lane in enumerate(_apart(operations, until)):
            row += 1
            yield _meta("thread_name", rank.rank, row, {"name": title if number == 0 else f"{title} {number + 1}"})
            for operation in lane:
                yield from _slices(operation, rank.rank, row, zero, until)
    for lane_name in dict.fromkeys(span.lane for span in rank.spans):
        row += 1
        yield _meta("thread_name", rank.rank, row, {"name": lane_name})
        for span in rank.spans:
            if span.lane == lane_name:
                yield _slice(span.name, rank.rank, row, span.begin - zero, span.end - span.begin, cat="program")


_SHOWN = ["group", "group_name", "sequence", "dtype", "op", "root", "peer", "tag", "bytes", "failed", "background"]


def _slices(operation: TracedOperation, rank: int, row: int, zero: int, until: int) -> Iterable[Event]:
    end = until if operation.end is None else operation.end
    begin, length = operation.begin - zero, end - operation.begin
    args: dict[str, Any] = {name: value for name in _SHOWN if (value := getattr(operation, name)) not in (None, False)}
    args["waited_us"] = operation.waited / 1e3
    if operation.end is None:
        args["unfinished"] = True
    number = f" #{operation.sequence}" if operation.sequence else ""
    yield _slice(operation.name + number, rank, row, begin, length, cat="operation", args=args)
    waited = min(operation.waited, length)
    if waited:
        yield _slice("waiting", rank, row, begin, waited, cat="waiting", cname=WAITING)
    if length > waited and not operation.background:
        yield _slice("moving", rank, row, begin + waited, length - waited, cat="moving", cname=MOVING)


def _apart(operations: list[TracedOperation], until: int) -> list[list[TracedOperation]]:
    """The operations in rows without overlaps; several threads may use groups at once."""
    rows: list[list[TracedOperation]] = []
    for operation in sorted(operations, key=lambda operation: operation.begin):
        for row in rows:
            before = row[-1].end
            if (until if before is None else before) <= operation.begin:
                row.append(operation)
                break
        else:
            rows.append([operation])
    return rows


def _slice(name: str, rank: int, row: int, begin: int, length: int, **more: Any) -> Event:
    return {"ph": "X", "name": name, "pid": rank, "tid": row, "ts": begin / 1e3, "dur": length / 1e3, **more}


def _instant(name: str, rank: int, at: int) -> Event:
    return {"ph": "i", "s": "p", "name": name, "pid": rank, "tid": 0, "ts": at / 1e3}


def _meta(name: str, rank: int, row: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": rank, "tid": row, "args": args}
