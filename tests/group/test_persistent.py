"""Plans: operations that are checked once and called many times."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.errors import ClosedError, MismatchError
from rankwise.group.group import Group
from rankwise.testing import run_ranks


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_plan_gives_the_result_of_the_operation(backend: str) -> None:
    def ranks(group: Group) -> None:
        me = group.rank
        for x in (np.ones((3, 2)), np.ones((), np.int8), np.ones(0), bytearray(b"\1\1"), np.ones(50_000, np.float32)):
            plan = group.all_reduce_plan(x, "max")
            assert plan() is None
            assert (np.asarray(x) == 1).all()
        x, y = np.full(4, 1.0), np.full(2, me)
        add, send = group.all_reduce_plan(x), group.broadcast_plan(y, 2)
        for step in range(5):
            y[...] = me + step
            add()
            work = group.all_reduce(1, async_op=True)
            send()
            assert work.done()
            assert y.tolist() == [2 + step] * 2
        assert x.tolist() == [3.0**5] * 4

    run_ranks(3, ranks, backend=backend)


def test_arguments_that_a_plan_cannot_keep_are_refused() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        for x in (3.0, np.ones((3, 3)).T[1:], np.ones(2, ">f4"), np.float32(3)):
            with pytest.raises(
                ValueError, match=r"^x: expected a contiguous, writable array that a plan can keep, got"
            ):
                group.all_reduce_plan(x)
        with pytest.raises(ValueError, match=r"^src=1: expected a rank"):
            group.broadcast_plan(np.ones(2), 1)
        with pytest.raises(TypeError, match=r"^op=.*: expected a name such as 'sum' or a ReduceOp; this operation"):
            group.all_reduce_plan(np.ones(2), np.add)
        with pytest.raises(TypeError, match=r"^op='mean' on int64"):
            group.all_reduce_plan(np.ones(2, int), "mean")
        tensor = torch.ones(3)
        group.all_reduce_plan(tensor)()
        assert tensor.tolist() == [1] * 3

    run_ranks(1, ranks)


def test_a_plan_keeps_its_array_and_group() -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        x = np.ones(5)
        alive = weakref.ref(x)
        plan = part.all_reduce_plan(x)
        del x, part
        gc.collect()
        plan()
        kept = alive()
        assert kept is not None
        assert kept.tolist() == [2] * 5
        del plan, kept
        gc.collect()
        assert alive() is None

    run_ranks(2, ranks)


def test_errors_of_a_plan() -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        x = np.full(2, 7.0)
        plan = part.all_reduce_plan(x, "sum" if group.rank else rw.ReduceOp.MAX)
        with pytest.raises(MismatchError):
            plan()
        assert x.tolist() == [7, 7]
        part.close()
        with pytest.raises(ClosedError):
            plan()

    run_ranks(2, ranks)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_plans_of_messages(backend: str) -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        me, other = group.rank, 1 - group.rank
        for x, into in (
            (np.zeros(3), np.empty(3)),
            (np.zeros((300, 400)), np.empty((300, 400))),
            (torch.zeros(2), torch.empty(2)),
        ):
            sends, receives = group.send_plan(x, other, 4), group.recv_plan(into, other, 4)
            anyone = group.recv_plan(into, rw.ANY, rw.ANY)
            for step in range(6):
                x[...] = me + step
                if step % 2:
                    work = sends.start()
                    (anyone if step == 3 else receives)()
                    work.wait()
                else:
                    work = receives.start()
                    assert sends() is None
                    work.wait()
                assert (into == other + step).all()
        null = group.recv_plan(into, None)
        null()
        null.start().wait()
        group.send_plan(x, None)()
        assert group.probe() is None
        fixed = np.ones(2)
        fixed.flags.writeable = False
        group.send_plan(fixed, me)()
        assert group.recv((2,), me).tolist() == [1, 1]
        with pytest.raises(ValueError, match=r"^x: expected a contiguous array that a plan can keep, got ndarray"):
            group.send_plan(np.ones((3, 3))[:, 1], 0)
        with pytest.raises(ValueError, match=r"^x: "):
            group.recv_plan(fixed, 0)

    run_ranks(2, ranks, backend=backend)


def test_memory_that_a_plan_uses_does_not_move_beneath_it() -> None:
    torch = pytest.importorskip("torch")

    def give_away(x: Any) -> None:
        x.data = torch.zeros(1)

    def move(x: Any) -> None:
        x.resize_(100_000)

    def free(x: Any) -> None:
        x.untyped_storage().resize_(0)

    def ranks(group: Group) -> None:
        me = group.rank
        plans: list[Callable[[Any], Callable[[], object]]] = [
            group.all_reduce_plan,
            group.broadcast_plan,
            lambda x: group.send_plan(x, me),
            lambda x: group.send_plan(x, me).start,
            lambda x: group.recv_plan(x, me),
        ]
        for make in plans:
            for change in (give_away, move, free):
                tensor = torch.ones(10_000)
                plan = make(tensor)
                change(tensor)
                with pytest.raises(
                    ValueError, match=r"^x: expected the memory .* moved, freed or resized.*a new plan$"
                ):
                    plan()
            whole = np.ones((2, 10_000))
            for x in (whole, whole[1], whole.view(np.matrix)):
                plan = make(x)
                with pytest.raises(ValueError, match="cannot resize an array"):
                    whole.resize((20, 10_000), refcheck=False)
            del plan, x
            whole.resize((20, 10_000), refcheck=False)
        x = torch.ones(3)
        plan = group.all_reduce_plan(x)
        plan()
        assert x.tolist() == [2] * 3

    run_ranks(2, ranks)


def test_a_plan_of_an_array_that_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `x.data = other` does on older NumPys. On newer ones only __setstate__ can, for which no call pays a check."""
    monkeypatch.setattr("rankwise.arrays.numpy._data_can_be_set", lambda: True)

    def ranks(group: Group) -> None:
        x = np.ones(1000)
        plan, send = group.all_reduce_plan(x), group.send_plan(x, group.rank)
        plan()
        x.__setstate__((1, (1000,), x.dtype, False, np.zeros(1000).tobytes()))  # type: ignore[attr-defined]
        for call in (plan, send.start):
            with pytest.raises(ValueError, match=r"^x: expected the memory .* moved to other memory .*a new plan$"):
                call()

    run_ranks(1, ranks)
