"""`rankwise bench --objects`: Python objects, arrays of unknown length, and many messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean

from rankwise.tools.bench.cases import MeasuredOperation
from rankwise.tools.bench.report import Table, ratios
from rankwise.tools.bench.timing import Measurement

RANK_FILE = Path(__file__).with_name("objects_rank.py")

OBJECTS = ("dict", "10K", "1M")
"""A small dict; 10 KiB of nested lists, dicts, strings and numbers; a dict with an array of 1 MiB."""

OPERATIONS: dict[str, Sequence[str]] = {
    "object_round_trip": OBJECTS,
    "object_from_any": OBJECTS,
    "array_round_trip": ("8", "10K", "1M"),
    "broadcast_object": OBJECTS,
    "gather_object": OBJECTS,
    "all_gather_object": OBJECTS,
    "scatter_object": OBJECTS,
    "posted": ("1000", "30000"),
    "posted_reversed": ("1000", "30000"),
    "posted_any": ("1000", "30000"),
    "unexpected": ("1000", "30000"),
    "beside_pending": ("10000",),
}
"""{operation: what it is measured with}: objects, bytes of an array, or numbers of messages."""

MANY_MESSAGES = ("posted", "posted_reversed", "posted_any", "unexpected", "beside_pending")

EXPLANATION = """\
operations with --objects, each measured with a small dict (dict), 10 KiB of nested plain data (10K) and a dict with an
array of 1 MiB (1M), or, between two ranks only, with the given number of messages of 8 bytes; the time is that of one
operation or message:
object_round_trip   send_object and recv_object to the other rank and back; MPI: send and recv
object_from_any     the same, but received from rw.ANY; MPI: ANY_SOURCE
array_round_trip    send and recv_any, which receives an array of unknown length; MPI: Send, and Probe,
                    Get_count and Recv into a new array
broadcast_object, gather_object, all_gather_object, scatter_object
                    MPI: bcast, gather, allgather, scatter
posted              messages to receives that were posted before, in their order
posted_reversed     the same, but sent in the opposite order of the receives
posted_any          as posted, but the receives are from rw.ANY
unexpected          messages that have all arrived before the first is received
beside_pending      a ping-pong while both ranks have that many other receives pending
"""


def points(operations: Iterable[str], n: int) -> dict[str, MeasuredOperation]:
    """What is measured with n ranks, by name. Many messages are measured between two ranks only."""
    return {
        name: MeasuredOperation(name, per_call=_per_call(operation, what))
        for operation in operations
        if n == 2 or operation not in MANY_MESSAGES
        for what in OPERATIONS[operation]
        for name in [f"{operation} {what}"]
    }


def means(points: Iterable[Sequence[Measurement]]) -> dict[str, float]:
    """By kind, the geometric mean of rankwise's ratios to the best MPI; empty if no MPI was measured."""
    found: dict[str, list[float]] = {}
    for results in points:
        if "best MPI" in (each := ratios(results)):
            found.setdefault(_kind(results[0].operation), []).append(each["best MPI"])
    return {kind: geometric_mean(values) for kind, values in found.items()}


class ObjectTable(Table):
    """One table for all operations, without bandwidths."""

    label_width = 25
    usual_columns = ("median", "min", "p99")

    def label(self, ours: Measurement | None) -> str:
        operation, _, what = "operation with".partition(" ") if ours is None else ours.operation.partition(" ")
        return f"{operation:<18}{what:>7}"


def _per_call(operation: str, what: str) -> int:
    if operation == "beside_pending":
        return 2
    return int(what) if operation in MANY_MESSAGES else 1


def _kind(name: str) -> str:
    operation, _, what = name.partition(" ")
    if operation in MANY_MESSAGES:
        return "many messages"
    return "unknown length" if operation == "array_round_trip" else what
