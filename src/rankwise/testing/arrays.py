"""The array-level test bodies, one per operation of the group object.

As in `pointer`, a body makes the inputs of a case, calls the group, compares with the oracle, and
returns what this rank received, or None. One case in three uses async_op=True and waits for the Work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.contract.types import ReduceOp
from rankwise.group.group import Group
from rankwise.testing.cases import Case
from rankwise.testing.oracle import Array, contents, difference, reduced, uneven

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
        wrong = difference(self.array, want, exact)
        assert wrong is None, wrong
        if self._gaps is not None:
            gaps = np.ascontiguousarray(self._gaps).view(np.uint8)
            assert (gaps == GAP_BYTE).all(), "the gaps of a strided array were written to"
        return self.array


def all_reduce(group: Group, case: Case) -> Array:
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    assert _call(case, group.all_reduce, x.array, _op(case)) is x.array, "all_reduce did not return its input"
    return x.check(reduced(inputs, case.dtype, _reduce_op(case)), exact=False)


def broadcast(group: Group, case: Case) -> Array:
    root = _root(case)
    x = CaseArray(contents(case, group.rank, group.world_size), case.strided)
    assert _call(case, group.broadcast, x.array, src=root) is x.array, "broadcast did not return its input"
    return x.check(contents(case, root, group.world_size))


def reduce(group: Group, case: Case) -> Array | None:
    root = _root(case)
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    got = _call(case, group.reduce, x.array, dst=root, op=_op(case))
    if group.rank == root:
        assert got is x.array, "reduce did not return its input on dst"
        return x.check(reduced(inputs, case.dtype, _reduce_op(case)), exact=False)
    assert got is None, f"reduce returned {got!r} off dst, expected None"
    x.check(inputs[group.rank])
    return None


def all_gather(group: Group, case: Case) -> Array:
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    want = np.stack(inputs)
    out = _out(case, want)
    got = _call(case, group.all_gather, x.array, **out)
    x.check(inputs[group.rank])
    return _result(got, out, want)


def scan(group: Group, case: Case) -> Array:
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    want = reduced(inputs[: group.rank + 1], case.dtype, _reduce_op(case)) if case.meaningful else inputs[0]
    out = _out(case, want)
    got = _call(case, group.scan, x.array, _op(case), **out)
    x.check(inputs[group.rank])
    return _result(got, out, want, exact=False)


def exscan(group: Group, case: Case) -> Array:
    """Rank 0 must receive the op's neutral element: reducing its input with it changes nothing."""
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    out = _out(case, inputs[0])
    got = _call(case, group.exscan, x.array, _op(case), **out)
    x.check(inputs[group.rank])
    if group.rank > 0:
        return _result(got, out, reduced(inputs[: group.rank], case.dtype, _reduce_op(case)), exact=False)
    assert not out or got is out["out"], "the result is not the array given as out="
    with np.errstate(over="ignore"):
        _result(reduced([got, inputs[0]], case.dtype, _reduce_op(case)), {}, inputs[0], exact=False)
    return np.asarray(got)


def gather_v(group: Group, case: Case) -> Array | None:
    root = _root(case)
    lengths = uneven(case, group.world_size)
    inputs = [contents(case, rank, group.world_size, (n, *case.shape[1:])) for rank, n in enumerate(lengths)]
    x = CaseArray(inputs[group.rank], case.strided)
    want = np.concatenate(inputs)
    out = _out(case, want) if group.rank == root else {}
    got = _call(case, group.gather_v, x.array, dst=root, **out)
    x.check(inputs[group.rank])
    if group.rank == root:
        return _result(got, out, want)
    assert got is None, f"gather_v returned {got!r} off dst, expected None"
    return None


def scatter_v(group: Group, case: Case) -> Array:
    root = _root(case)
    counts = uneven(case, group.world_size)
    whole = contents(case, root, group.world_size, (sum(counts), *case.shape[1:]))
    x = CaseArray(whole, case.strided)
    want = _parts(whole, counts)[group.rank]
    out = _out(case, want)
    given = (x.array, counts) if group.rank == root else (None, None)
    got = _call(case, group.scatter_v, *given, src=root, **out)
    x.check(whole)
    return _result(got, out, want)


def reduce_scatter_v(group: Group, case: Case) -> Array:
    counts = uneven(case, group.world_size)
    shape = (sum(counts), *case.shape[1:])
    inputs = [contents(case, rank, group.world_size, shape) for rank in range(group.world_size)]
    x = CaseArray(inputs[group.rank], case.strided)
    whole = reduced(inputs, case.dtype, _reduce_op(case)) if case.meaningful else inputs[0]
    want = _parts(whole, counts)[group.rank]
    out = _out(case, want)
    got = _call(case, group.reduce_scatter_v, x.array, counts, _op(case), **out)
    x.check(inputs[group.rank])
    return _result(got, out, want, exact=False)


def all_to_all_v(group: Group, case: Case) -> Array:
    n, me = group.world_size, group.rank
    counts = [uneven(case, n, salt=rank) for rank in range(n)]  # counts[i][j]: from rank i to rank j
    inputs = [contents(case, rank, n, (sum(row), *case.shape[1:])) for rank, row in enumerate(counts)]
    x = CaseArray(inputs[me], case.strided)
    want = np.concatenate([_parts(each, row)[me] for each, row in zip(inputs, counts, strict=True)])
    out = _out(case, want)
    got, received = _call(case, group.all_to_all_v, x.array, counts[me], **out)
    x.check(inputs[me])
    assert received == [row[me] for row in counts], f"got counts {received}"
    return _result(got, out, want)


def all_gather_v(group: Group, case: Case) -> Array:
    lengths = uneven(case, group.world_size)
    tail = case.shape[1:]
    inputs = [contents(case, rank, group.world_size, (length, *tail)) for rank, length in enumerate(lengths)]
    x = CaseArray(inputs[group.rank], case.strided)
    want = np.concatenate(inputs)
    out = _out(case, want)
    got = _call(case, group.all_gather_v, x.array, **out)
    x.check(inputs[group.rank])
    return _result(got, out, want)


def gather(group: Group, case: Case) -> Array | None:
    root = _root(case)
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    want = np.stack(inputs)
    out = _out(case, want) if group.rank == root else {}
    got = _call(case, group.gather, x.array, dst=root, **out)
    x.check(inputs[group.rank])
    if group.rank == root:
        return _result(got, out, want)
    assert got is None, f"gather returned {got!r} off dst, expected None"
    return None


def scatter(group: Group, case: Case) -> Array:
    root = _root(case)
    whole = contents(case, root, group.world_size)
    x = CaseArray(whole, case.strided)
    want = np.array_split(whole, group.world_size)[group.rank]
    out = _out(case, want)
    got = _call(case, group.scatter, x.array if group.rank == root else None, src=root, **out)
    x.check(whole)
    return _result(got, out, want)


def reduce_scatter(group: Group, case: Case) -> Array:
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    whole = reduced(inputs, case.dtype, _reduce_op(case)) if case.meaningful else inputs[0]
    want = np.array_split(whole, group.world_size)[group.rank]
    out = _out(case, want)
    got = _call(case, group.reduce_scatter, x.array, _op(case), **out)
    x.check(inputs[group.rank])
    return _result(got, out, want, exact=False)


def all_to_all(group: Group, case: Case) -> Array:
    inputs = _inputs(group, case)
    x = CaseArray(inputs[group.rank], case.strided)
    want = np.concatenate([np.array_split(each, group.world_size)[group.rank] for each in inputs])
    out = _out(case, want)
    got = _call(case, group.all_to_all, x.array, **out)
    x.check(inputs[group.rank])
    return _result(got, out, want)


def send_recv(group: Group, case: Case) -> Array:
    """Each rank sends to the next one, and receives into an array or by shape and dtype."""
    n, me, tag = group.world_size, group.rank, case.seed % 5
    before = (me - 1) % n
    x = CaseArray(contents(case, me, n), case.strided)
    want = contents(case, before, n)
    sending = group.isend(x.array, (me + 1) % n, tag)
    if case.seed % 2:
        room = CaseArray(_filled(want.shape, want.dtype), case.strided)
        assert group.recv(room.array, before, tag) is room.array, "recv did not return its array"
        got = room.check(want)
    else:
        got = _result(group.recv(want.shape, before, tag, dtype=want.dtype), {}, want)
    sending.wait()
    x.check(contents(case, me, n))
    return got


BODIES: dict[str, Callable[[Group, Case], Array | None]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "gather": gather,
    "scatter": scatter,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "all_gather_v": all_gather_v,
    "gather_v": gather_v,
    "scatter_v": scatter_v,
    "reduce_scatter_v": reduce_scatter_v,
    "all_to_all_v": all_to_all_v,
    "scan": scan,
    "exscan": exscan,
    "send_recv": send_recv,
}


def _call(case: Case, operation: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """The operation's result, from a blocking call or from a Work."""
    if case.seed % 3 == 0:
        return operation(*args, **keywords, async_op=True).wait()
    return operation(*args, **keywords)


def _parts(whole: Array, counts: list[int]) -> list[Array]:
    return np.split(whole, np.cumsum(counts)[:-1])


def _inputs(group: Group, case: Case) -> list[Array]:
    return [contents(case, rank, group.world_size) for rank in range(group.world_size)]


def _filled(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array whose every byte is GAP_BYTE."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = GAP_BYTE
    return array


def _out(case: Case, want: Array) -> dict[str, Any]:
    """The keyword argument out= of a case as a dict, which is empty if the case passes none."""
    if not case.out:
        return {}
    return {"out": CaseArray(_filled(want.shape, want.dtype), case.strided).array}


def _result(got: object, out: dict[str, Any], want: Array, exact: bool = True) -> Array:
    """Check an operation's return value: it must hold the right values, and be `out` if that was passed."""
    assert isinstance(got, np.ndarray), f"got a {type(got).__name__}, expected an array"
    assert not out or got is out["out"], "the result is not the array given as out="
    wrong = difference(got, want, exact)
    assert wrong is None, wrong
    return got


def _op(case: Case) -> str | ReduceOp:
    """The op as a name in half of the cases, and as a ReduceOp in the others."""
    op = _reduce_op(case)
    return op if case.seed % 2 else op.name.lower()


def _reduce_op(case: Case) -> ReduceOp:
    assert case.op is not None
    return case.op


def _root(case: Case) -> int:
    assert case.root is not None
    return case.root
