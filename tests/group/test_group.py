"""What Group adds to the operations: arguments, kinds of array, uneven parts, numbers."""

from __future__ import annotations

import gc
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise import _native
from rankwise.backends.native import threads
from rankwise.contract.errors import ClosedError, MismatchError, RankwiseError
from rankwise.contract.types import ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        call()


def test_arguments_are_refused_before_anything_is_sent() -> None:
    """Rank 1 of 2 makes every mistake and rank 0 makes none; the group continues unharmed."""

    def ranks(group: Group) -> None:
        x = np.ones(4, np.float32)
        fixed = np.ones(4)
        fixed.flags.writeable = False
        same = np.lib.stride_tricks.as_strided(x, (2, 4), (0, 4))
        own = "expected elements with memory of their own, as the operation writes them"
        if group.rank == 1:
            refused(lambda: group.all_reduce(same), ValueError, f"x: {own}")
            refused(lambda: group.broadcast(same), ValueError, f"x: {own}")
            refused(lambda: group.recv(same, 0), ValueError, f"x: {own}")
            refused(lambda: group.all_gather(x, out=same), ValueError, f"out: {own}")
            refused(lambda: group.all_reduce("x"), TypeError, "x: expected an array, a buffer or a number, got str")
            refused(lambda: group.all_reduce(fixed), ValueError, "x: expected a writable array, got a read-only one")
            refused(lambda: group.all_reduce(x, "median"), ValueError, "op='median': expected one of sum, mean")
            refused(lambda: group.all_reduce(x, 0), TypeError, "op=0: expected a name such as 'sum' or a ReduceOp")
            refused(lambda: group.all_reduce(x, []), TypeError, "op=[]: expected a name such as 'sum' or a ReduceOp")
            refused(lambda: group.all_reduce(x, "bor"), TypeError, "op='bor' on float32: bitwise operations are")
            refused(lambda: group.all_reduce(3, "mean"), TypeError, "op='mean' on int64: a mean of integers")
            refused(lambda: group.reduce(x, 0, ReduceOp.BAND), TypeError, "op='band' on float32: bitwise")
            refused(lambda: group.reduce(x, 2), ValueError, "dst=2: expected a rank of the group, 0 to 1")
            refused(lambda: group.broadcast(x, -1), ValueError, "src=-1: expected a rank of the group, 0 to 1")
            refused(lambda: group.broadcast(x, "0"), TypeError, "src='0': expected an int, got str")
            refused(lambda: group.broadcast(fixed), ValueError, "x: expected a writable array, got a read-only")
            refused(lambda: group.gather(x, 1.0), TypeError, "dst=1.0: expected an int, got float")
            refused(lambda: group.gather(x, 1, out=x), ValueError, "out: expected shape (2, 4), got (4,)")
            refused(lambda: group.all_gather(x, out=np.empty((2, 4))), ValueError, "out: expected dtype float32, got f")
            refused(lambda: group.all_gather_v(np.float32(1)), ValueError, "x: expected an array with an axis 0")
            refused(lambda: group.all_gather_v(x, out=np.empty(9)), ValueError, "out: expected dtype float32, got")
            wide = np.empty((9, 2), np.float32)
            refused(lambda: group.all_gather_v(x, out=wide), ValueError, "out: expected shape (9,), got (9, 2)")
            refused(lambda: group.scatter(None, 1), TypeError, "x: expected an array, a buffer or a number, got None")
            refused(lambda: group.scatter(np.array(1), 1), ValueError, "x: expected an array with an axis 0")
            refused(lambda: group.scatter(x, 1, out=x[:2]), ValueError, "out: expected memory of its own, but it over")
            refused(lambda: group.scatter(None, 0, out=3), TypeError, "out: expected a writable array, got an immutabl")
            refused(lambda: group.reduce_scatter(3.0), ValueError, "x: expected an array with an axis 0, got a number")
            refused(lambda: group.reduce_scatter(x, "and"), ValueError, "op='and': expected one of")
            refused(lambda: group.all_to_all(x, out=x), ValueError, "out: expected memory of its own, but it overlaps")
            refused(lambda: group.send(x, 7), ValueError, "dst=7: expected a rank of the group, 0 to 1")
            refused(lambda: group.send(x, 0, "a"), TypeError, "tag='a': expected an int, got str")
            refused(lambda: group.send(x, 0, -1), ValueError, "tag=-1: expected 0 to 2147483647")
            refused(lambda: group.recv(x, 0, 2**31), ValueError, "tag=2147483648: expected 0 to 2147483647")
            refused(lambda: group.recv(fixed, 0), ValueError, "x: expected a writable array, got a read-only one")
            refused(lambda: group.recv((1, -1), 0), ValueError, "x=(1, -1): expected an array, or a shape of ints >= 0")
            refused(lambda: group.split("red"), TypeError, "color='red': expected an int, got str")
            refused(lambda: group.split(1, 0.5), TypeError, "key=0.5: expected an int, got float")
            refused(lambda: group.subgroup([0, 5]), ValueError, "ranks=5: expected a rank of the group, 0 to 1")
            refused(lambda: group.subgroup([0, 0]), ValueError, "ranks=[0, 0]: expected at least one rank, and each o")
            refused(lambda: group.subgroup([]), ValueError, "ranks=[]: expected at least one rank, and each once")
            for seed, error in ((-1, ValueError), (None, TypeError), ("a", ValueError), ([1, 1.5], TypeError)):
                text = f"seed={seed!r}: expected one or several ints of at least 0"
                refused(lambda seed=seed: group.rng(seed), error, text)  # type: ignore[misc]
            none: Any = None
            refused(lambda: group.subgroup(none), TypeError, "ranks=None: expected ranks of the group, got NoneType")
            refused(lambda: group.shrink(none), TypeError, "exclude=None: expected ranks of the group, got NoneType")
            refused(lambda: group.map(abs, none, dst=1), TypeError, "tasks=None: expected the tasks, on rank dst, got")
            refused(lambda: group.batch(none), TypeError, "sends=None: expected a list of (x, dst), got NoneType")
            refused(lambda: group.batch([], none), TypeError, "recvs=None: expected a list of (x, src), got NoneType")
            refused(lambda: rw.Mesh(group, dp=2, periodic=none), TypeError, "periodic=None: expected a bool, or axes")
            refused(lambda: rw.Pool(group=3), TypeError, "group=3: expected a Group, got int")  # type: ignore[arg-type]
            refused(lambda: group.translate_rank(0, None), TypeError, "other=None: expected a Group, got NoneType")  # type: ignore[arg-type]
        assert group.all_reduce(x) is x
        assert (x == 2).all()

    run_ranks(ranks, 2)


def test_timeout_is_checked() -> None:
    def ranks(group: Group) -> None:
        refused(lambda: setattr(group, "timeout", 0), ValueError, "timeout=0: expected a number of seconds above 0")
        refused(lambda: setattr(group, "timeout", "1"), TypeError, "timeout='1': expected a number of seconds, got s")
        refused(lambda: setattr(group, "timeout", float("nan")), ValueError, "timeout=nan: expected a number of sec")
        # No wait is endless, nor longer than an engine's clock can tell.
        refused(lambda: setattr(group, "timeout", float("inf")), ValueError, "timeout=inf: expected a number of sec")
        refused(lambda: setattr(group, "timeout", 1.1e9), ValueError, "timeout=1100000000.0: expected a number of s")
        with pytest.raises(ValueError, match="timeout=inf"), group.timeout_of(float("inf")):
            pass
        group.timeout = 12
        assert group.timeout == 12.0

    run_ranks(ranks, 1)


def test_numbers() -> None:
    def ranks(group: Group) -> None:
        assert group.all_reduce(3) == 6
        assert type(group.all_reduce(3)) is int
        assert group.all_reduce(1.5, "mean") == 1.5
        assert group.all_reduce(group.rank == 1, "max") is True
        assert group.all_reduce(1j * group.rank) == 1j
        assert type(group.all_reduce(np.float16(2))) is np.float16
        assert group.broadcast(group.rank + 5, 1) == 6
        assert group.reduce(2, 1) == (4 if group.rank == 1 else None)
        assert group.all_gather(group.rank).tolist() == [0, 1]
        gathered = group.gather(2.5 * group.rank)
        assert gathered is None if group.rank else gathered.tolist() == [0, 2.5]
        work = group.isend(7, 1 - group.rank)
        assert group.recv((), 1 - group.rank, dtype=int) == 7
        work.wait()

    run_ranks(ranks, 2)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 9])
def test_axis_0_is_split_as_numpy_does(length: int) -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        x = np.arange(length * 6, dtype=np.int32).reshape(length, 2, 3)
        parts = np.array_split(x, n)
        for src in range(n):
            part = group.scatter(x + src if me == src else None, src)
            assert part.shape == parts[me].shape
            assert (part == parts[me] + src).all()
        part = group.reduce_scatter(x)
        assert part.shape == parts[me].shape
        assert (part == n * parts[me]).all()
        received = group.all_to_all(x + 1000 * me)
        want = np.concatenate([parts[me] + 1000 * rank for rank in range(n)])
        assert received.shape == want.shape
        assert (received == want).all()

    run_ranks(ranks, 3)


def test_out_receives_the_result() -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        x = np.arange(6, dtype=np.int16) + me

        def gives(call: Callable[..., Any], want: Any) -> None:
            for out in (np.zeros_like(want), np.zeros((*want.shape[:-1], 2 * want.shape[-1]), want.dtype)[..., ::2]):
                assert call(out=out) is out
                assert (out == want).all()

        everything = np.stack([np.arange(6) + rank for rank in range(n)]).astype(np.int16)
        gives(lambda out: group.all_gather(x, out=out), everything)
        gives(lambda out: group.all_gather_v(x, out=out), everything.ravel())
        gives(lambda out: group.scatter(x if me == 2 else None, 2, out=out), np.array_split(everything[2], n)[me])
        gives(lambda out: group.reduce_scatter(x, out=out), np.array_split(everything.sum(0, np.int16), n)[me])
        mine = np.concatenate([np.array_split(row, n)[me] for row in everything])
        gives(lambda out: group.all_to_all(x, out=out), mine)
        if me == 1:
            gives(lambda out: group.gather(x, 1, out=out), everything)
        else:
            for _ in range(2):
                assert group.gather(x, 1, out="not used here") is None

    run_ranks(ranks, 3)


def test_a_late_error_about_out_does_not_fail_the_group() -> None:
    """The shape of a result comes from the other ranks, which by then rely on this rank."""

    def ranks(group: Group) -> None:
        x = np.ones((group.rank + 1, 2))
        out = np.zeros((5, 2)) if group.rank == 1 else None
        if out is None:
            assert group.all_gather_v(x).shape == (6, 2)
            assert group.scatter(np.arange(5) if group.rank == 0 else None).shape == (2 - group.rank // 2,)
        else:
            refused(lambda: group.all_gather_v(x, out=out), ValueError, "out: expected shape (6, 2), got (5, 2)")
            refused(lambda: group.scatter(out=out), ValueError, "out: expected dtype int64, got float64")
            assert (out == 0).all()
        assert group.all_reduce(1) == 3

    run_ranks(ranks, 3)


def test_scatter_in_types_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def ranks(group: Group) -> None:
        x = np.arange(4).astype(ml_dtypes.bfloat16)
        part = group.scatter(x if group.rank == 0 else None)
        assert part.dtype == ml_dtypes.bfloat16
        assert part.tolist() == [[0, 1], [2, 3]][group.rank]

    run_ranks(ranks, 2)


def test_ranks_pass_different_lengths() -> None:
    def ranks(group: Group) -> None:
        with pytest.raises(MismatchError):
            group.all_to_all(np.ones(4 + group.rank))

    run_ranks(ranks, 2)


def test_broadcast_reads_read_only_on_src() -> None:
    def ranks(group: Group) -> None:
        x = b"\x01\x02" if group.rank == 0 else bytearray(2)
        assert group.broadcast(x) is x
        assert bytes(x) == b"\x01\x02"
        turned = np.array([[1, 2], [3, 4]]).T if group.rank == 0 else np.zeros((2, 2), int)[::-1]
        assert group.broadcast(turned).tolist() == [[1, 3], [2, 4]]

    run_ranks(ranks, 2)


def test_reduce_leaves_other_ranks_arrays_unchanged() -> None:
    def ranks(group: Group) -> None:
        x = np.full(6, group.rank + 1)[::2]
        if group.rank != 1:
            x.flags.writeable = False
        result = group.reduce(x, 1, "prod")
        assert result is (x if group.rank == 1 else None)
        assert x.tolist() == [6 if group.rank == 1 else group.rank + 1] * 3

    run_ranks(ranks, 3)


def test_messages_keep_their_arrays_alive() -> None:
    """Dropped works still complete, from memory to which they hold the only reference."""

    def ranks(group: Group) -> None:
        n = 200
        if group.rank == 0:
            for i in range(n):
                group.isend(np.full(5000, i), 1)
            gc.collect()
        group.all_reduce(1)
        if group.rank == 1:
            for i in range(n):
                assert (group.recv((5000,), 0, dtype=int) == i).all()
        group.barrier()
        assert len(group.pending.works) == 0

    run_ranks(ranks, 2)


def test_receive_into_a_non_contiguous_array() -> None:
    def ranks(group: Group) -> None:
        base = np.zeros((4, 4))
        if group.rank == 0:
            group.send(np.arange(4.0), 1, tag=3)
            group.send(np.arange(4.0), 1, tag=4)
        else:
            column = base[:, 1]
            assert group.recv(column, 0, 3) is column
            work = group.irecv(base[:, 2], 0, 4)
            while not work.done():
                pass
            assert base[:, 2].tolist() == [0, 1, 2, 3]  # done() is enough
            assert work.result() is work.wait()
            assert base[:, 1].tolist() == [0, 1, 2, 3]
            assert (base[:, ::3] == 0).all()

    run_ranks(ranks, 2)


def test_a_message_of_another_size() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            group.isend(np.ones(3), 1)
        with pytest.raises(RankwiseError):
            group.recv((4,), 0) if group.rank else group.barrier()

    run_ranks(ranks, 2)


def test_ranks_disagree_about_a_subgroup() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 2:
            assert group.subgroup([0, 1]) is None
        else:
            with pytest.raises(MismatchError, match=r"subgroup\(ranks=.*\): only 1 of these ranks called it with them"):
                group.subgroup([0, 1] if group.rank == 0 else [1, 0])
        assert group.all_reduce(1) == 3

    run_ranks(ranks, 3)


def test_names() -> None:
    def ranks(group: Group) -> None:
        halves = group.split(7)
        assert halves is not None
        assert (group.name, halves.name) == ("world", "world.7")
        first = group.subgroup([0, 1])
        assert first is not None
        assert first.name == "world[0, 1]"
        named = group.split(0, name="data")
        assert named is not None
        assert repr(named).startswith(f"<Group 'data', rank {group.rank} of 2, ")
        for part in (halves, first, named):
            part.close()
            assert "closed" in repr(part)

    run_ranks(ranks, 2)


def test_ranks_and_translation() -> None:
    def ranks(group: Group) -> None:
        assert group.ranks == (0, 1, 2, 3)
        turned = group.split(0, -group.rank, "turned")
        assert turned is not None
        assert turned.ranks == (3, 2, 1, 0)
        nested = turned.subgroup([1, 3])  # of the world: 2 and 0
        if nested is None:
            assert group.rank in (1, 3)
        else:
            assert nested.ranks == (2, 0)
            assert [group.translate_rank(rank, nested) for rank in range(4)] == [1, None, 0, None]
            assert [nested.translate_rank(rank, turned) for rank in range(2)] == [1, 3]
            copy = nested.dup("copy")
            assert (copy.ranks, copy.rank, copy.name) == (nested.ranks, nested.rank, "copy")
            assert copy.all_reduce(1) == 2
            refused(lambda: nested.translate_rank(2, group), ValueError, "rank=2: expected a rank of the group, 0 to 1")
        solo = Group(threads.connect(_native.Segment.create(1), 0, 10.0))
        refused(lambda: group.translate_rank(0, solo), ValueError, "other: expected a group made from the same world")
        solo.close()

    run_ranks(ranks, 4)


def test_messages_of_a_duplicate_do_not_match_the_groups() -> None:
    def ranks(group: Group) -> None:
        copy = group.dup()
        other = 1 - group.rank
        works = [group.isend(1, other), copy.isend(2, other)]
        assert copy.recv((), other, dtype=int) == 2
        assert group.recv((), other, dtype=int) == 1
        for work in works:
            work.wait()

    run_ranks(ranks, 2)


def test_a_group_cannot_be_pickled() -> None:
    def ranks(group: Group) -> None:
        refused(
            lambda: pickle.dumps(group), TypeError, "group 'world' belongs to this rank and cannot be sent; every rank"
        )

    run_ranks(ranks, 1)


@pytest.mark.parametrize("groups", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_groups_leave_nothing(groups: int) -> None:
    segment = _native.Segment.create(2)
    before: list[int] = []
    after: list[int] = []

    def ranks(rank: int) -> None:
        with Group(threads.connect(segment, rank, 60.0)) as group:
            group.send(1, rank)  # what the first message makes is kept
            group.recv((), rank, dtype=int)
            group.barrier()
            if rank == 0:
                before.append(segment.allocated_blocks)
            group.barrier()
            for i in range(groups):
                part = group.dup()
                if i % 100 == 0:
                    part.all_reduce(np.ones(10), async_op=True)
                    part.isend(1, 1 - rank)
                    part.recv((), 1 - rank, dtype=int)
                part.close()
            kept = [group.dup() for _ in range(100)]
            assert [part.all_reduce(1) for part in kept] == [2] * 100
            for part in kept:
                part.close()
            group.barrier()
            if rank == 0:
                after.append(segment.allocated_blocks)
            group.barrier()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ranks, range(2)))
    assert before == after


def test_overlapping_groups_on_several_threads() -> None:
    """Each thread of a rank has a group of its own; the groups' ranks overlap."""

    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        parts = [
            group.dup(),
            group.split(me // 2),
            group.subgroup([me, (me + 1) % n] if me % 2 else [(me - 1) % n, me]),
        ]
        trouble: list[BaseException] = []

        def use(part: Group, salt: int) -> None:
            try:
                for i in range(100):
                    want = sum(range(part.world_size)) + part.world_size * (i + salt)
                    assert part.all_reduce(np.full(i, part.rank + i + salt)).tolist() == [want] * i
            except BaseException as error:  # noqa: BLE001 - told to the test below
                trouble.append(error)

        running = [threading.Thread(target=use, args=(part, salt)) for salt, part in enumerate(parts)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert not trouble, trouble

    run_ranks(ranks, 4)


def test_after_close() -> None:
    def ranks(group: Group) -> None:
        part = group.split(0)
        assert part is not None
        with part as inside:
            assert inside is part
            assert not part.closed
        assert part.closed
        part.close()
        x = np.ones((2, 2))
        for call in (
            part.barrier,
            lambda: part.all_reduce(x),
            lambda: part.broadcast(x),
            lambda: part.reduce(x),
            lambda: part.gather(x),
            lambda: part.all_gather(x),
            lambda: part.all_gather_v(x),
            lambda: part.scatter(x, part.rank),
            lambda: part.reduce_scatter(x),
            lambda: part.all_to_all(x),
            lambda: part.send(x, 0),
            lambda: part.recv(x, 0),
            lambda: part.split(0),
            lambda: part.subgroup([0, 1]),
        ):
            with pytest.raises(ClosedError):
                call()

    run_ranks(ranks, 2)
