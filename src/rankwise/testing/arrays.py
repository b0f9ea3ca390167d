"""The array-level test bodies: one for all collectives of the group, and one for messages.

As in `pointer`, a body makes the inputs of a case, calls the group, compares with the oracle, and
returns what this rank received, or None. One case in three uses async_op=True and waits for the Work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.contract.operations import EXSCAN, one_block
from rankwise.group.group import Group
from rankwise.testing.cases import Case
from rankwise.testing.oracle import Array, Exchange, check_equal, exchange

GAP_BYTE = 0xA5


class CaseArray:
    """The array of a case: contiguous, or a view of every second element along its last axis."""

    def __init__(self, values: Array, strided: bool) -> None:
        self._gaps: Array | None = None
        if strided and values.ndim:
            *rows, length = values.shape
            whole = _filled((*rows, 2 * length), values.dtype)
            self.array = whole[..., ::2]
            self._gaps = whole[..., 1::2]
            self.array[...] = values
        else:
            self.array = values.copy()

    def check(self, want: Array, exact: bool = True) -> Array:
        """Raise AssertionError if the array differs from `want` or the gaps of a view were written to."""
        check_equal(self.array, want, exact)
        if self._gaps is not None:
            gaps = np.ascontiguousarray(self._gaps).view(np.uint8)
            assert (gaps == GAP_BYTE).all(), "the gaps of a strided array were written to"
        return self.array


def body(group: Group, case: Case) -> Array | None:
    """Run a case as one rank of the group; returns what this rank received, or None."""
    return send_recv(group, case) if case.operation == "send_recv" else collective(group, case)


def collective(group: Group, case: Case) -> Array | None:
    me, name = group.rank, case.operation
    data = exchange(case, "array", group.world_size)
    own, want = data.sent(me), data.received(me)
    x, exact = CaseArray(own, case.strided), case.op is None
    neutral = data.row is EXSCAN and me == 0  # rank 0 receives the op's neutral element
    out = _out(case, own if neutral else want)
    # The op as a name in half of the cases, and as a ReduceOp in the others.
    op = case.op.name.lower() if case.op is not None and case.seed % 2 == 0 else case.op
    how = {"async_op": True} if case.seed % 3 == 0 else {}
    got = call(group, data, x.array, op, **out, **how)
    if how:
        got = got.wait()
    if "recv_counts" in data.row.takes:
        got, counts = got
        assert counts == [row[me] for row in data.counts], f"got counts {counts}"
    if "recv" not in data.row.takes:  # it works in place
        assert got is (None if want is None else x.array), f"{name} returned {got!r}"
        received = x.check(own if want is None else want, exact)
        return None if want is None else received
    x.check(own)
    if neutral:  # reducing this rank's input with it changes nothing
        assert not out or got is out["out"], "the result is not the array given as out="
        with np.errstate(over="ignore"):
            _result(data.fold([got, own]), {}, own, exact)
        return np.asarray(got)
    if want is None:
        assert got is None, f"{name} returned {got!r}, expected None"
        return None
    return _result(got, out, want, exact)


def call(group: Group, data: Exchange, x: Any, op: Any, **keywords: Any) -> Any:
    """Call the operation's method with this rank's arguments."""
    row, given = data.row, [x]
    if row.vectors and row.sends is not one_block:
        given.append(data.counts[group.rank])
    if row.rooted == "reads" and "recv" in row.takes and group.rank != data.root:  # only the root has data
        given = [None] * len(given)
    if row.rooted:
        keywords["src" if row.rooted == "reads" else "dst"] = data.root
    if "op" in row.takes:
        keywords["op"] = op
    return getattr(group, row.name)(*given, **keywords)


def send_recv(group: Group, case: Case) -> Array:
    """Each rank sends to the next one, and receives into an array or by shape and dtype."""
    n, me, tag = group.world_size, group.rank, case.seed % 5
    data, before = exchange(case, "array", n), (me - 1) % n
    x, want = CaseArray(data.sent(me), case.strided), data.sent(before)
    sending = group.isend(x.array, (me + 1) % n, tag)
    if case.seed % 2:
        room = CaseArray(_filled(want.shape, want.dtype), case.strided)
        assert group.recv(room.array, before, tag) is room.array, "recv did not return its array"
        got = room.check(want)
    else:
        got = _result(group.recv(want.shape, before, tag, dtype=want.dtype), {}, want)
    sending.wait()
    x.check(data.sent(me))
    return got


def _filled(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array whose every byte is GAP_BYTE."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = GAP_BYTE
    return array


def _out(case: Case, want: Array | None) -> dict[str, Any]:
    """The keyword argument out= of a case as a dict, which is empty if the case passes none."""
    if not case.out or want is None:
        return {}
    return {"out": CaseArray(_filled(want.shape, want.dtype), case.strided).array}


def _result(got: object, out: dict[str, Any], want: Array, exact: bool = True) -> Array:
    """Check an operation's return value: it must hold the right values, and be `out` if that was passed."""
    assert isinstance(got, np.ndarray), f"got a {type(got).__name__}, expected an array"
    assert not out or got is out["out"], "the result is not the array given as out="
    check_equal(got, want, exact)
    return got
