"""What the ranks of a job called last. A collective that waits for no other rank may end although another rank never
called it; if it is the last one, no rank notices."""

from __future__ import annotations

from rankwise._native import Operation, SegmentView
from rankwise.contract.ranks import ranks_in_words


def difference(segment_fd: int, first: int) -> str:
    """A sentence about a group whose ranks ended after different collectives; "" if there is none.

    segment_fd: the shared memory of a job whose ranks have all ended without an error. first: the number of its first
    rank. A group in which a call has failed or is incomplete is skipped, because that call's rank knows of it; so is a
    group that called `shrink` or `restore`, whose ranks may be in another group of the same number since. So is a rank
    whose last call of the group has been overwritten, because then its earlier ones have been too.
    """
    view = SegmentView(segment_fd)
    last: dict[int, dict[int, Operation]] = {}  # for each group the last collective of each of its ranks
    reported: set[int] = set()
    for index in range(view.world_size):
        for operation in view.operations(index):
            if operation.failed or operation.end is None or operation.name in ("shrink", "restore"):
                reported.add(operation.group)
            elif not operation.part and (operation.sequence or operation.name == "init"):
                last.setdefault(operation.group, {})[first + index] = operation
    for group, calls in sorted(last.items()):
        ranks: dict[object, list[int]] = {}
        for rank, call in sorted(calls.items()):
            ranks.setdefault((call.sequence, call.name, call.root), []).append(rank)
        if len(ranks) > 1 and group not in reported:
            ends = [f"{ranks_in_words(members)} after {_in_words(calls[members[0]])}" for members in ranks.values()]
            where = f" of group {calls[min(calls)].group_name}" if group else ""
            return f"the ranks{where} ended after different calls: {', '.join(ends)}"
    return ""


def quick_difference(segment_fd: int) -> str:
    """As `difference` for all ranks of a job, but "" at once if the last calls of all have the same number."""
    view = SegmentView(segment_fd)
    last = (view.state(rank).operation for rank in range(view.world_size))
    return difference(segment_fd, 0) if len({operation and operation.sequence for operation in last}) > 1 else ""


def _in_words(call: Operation) -> str:
    """ "broadcast #2 (32 bytes of float64, root 1)"."""
    if call.name == "init":
        return "init"
    details = [f"{call.bytes} bytes{f' of {call.dtype}' if call.dtype else ''}"] if call.bytes else []
    details += [call.op] if call.op else []
    details += [] if call.root is None else [f"root {call.root}"]
    return f"{call.name} #{call.sequence}" + f" ({', '.join(details)})" * bool(details)
