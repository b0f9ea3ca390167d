"""The types of the array level that type checkers must infer. Never run: test_types.py checks it with mypy and pyright.

assert_type fails where the type is another; `type: ignore` fails where there is no error to ignore.
"""

from typing import Any

import numpy as np
import torch
from typing_extensions import assert_type

import rankwise as rw

F32 = np.ndarray[Any, np.dtype[np.float32]]


def in_place(group: rw.Group, x: F32, t: torch.Tensor) -> None:
    assert_type(group.all_reduce(x), F32)
    assert_type(group.all_reduce(t, "max"), torch.Tensor)
    assert_type(group.all_reduce(3), int)
    assert_type(group.all_reduce(x, async_op=True), rw.Work[F32])
    assert_type(group.all_reduce(x, async_op=True).wait(1.0), F32)
    assert_type(group.all_reduce(x, lambda a, b: a + b), F32)
    assert_type(group.all_reduce(x, "minloc"), tuple[F32, Any])
    assert_type(group.all_reduce(t, out=x), F32)
    assert_type(group.all_reduce(t, out=x, async_op=True), rw.Work[F32])
    assert_type(group.all_reduce(x, "maxloc", out=x), tuple[F32, Any])
    assert_type(group.broadcast(t, 1), torch.Tensor)
    assert_type(group.broadcast(None, 1, out=t), torch.Tensor)
    assert_type(group.reduce(t, 1, out=x), F32 | None)
    assert_type(group.reduce(x, 1), F32 | None)
    assert_type(group.reduce(x, 0, async_op=True), rw.Work[F32 | None])
    assert_type(group.barrier(async_op=True), rw.Work[None])


def new_arrays(group: rw.Group, x: F32) -> None:
    assert_type(group.all_gather(x), F32)
    assert_type(group.gather(x), F32 | None)
    assert_type(group.scatter(x), F32)
    assert_type(group.reduce_scatter(x), F32)
    assert_type(group.all_to_all(x), F32)
    assert_type(group.all_gather_v(x), F32)
    assert_type(group.gather_v(x, 1), F32 | None)
    assert_type(group.scatter_v(x, [1, 2]), F32)
    assert_type(group.reduce_scatter_v(x, [1, 2], "max"), F32)
    assert_type(group.all_to_all_v(x, [1, 2]), tuple[F32, list[int]])
    assert_type(group.scan(x), F32)
    assert_type(group.exscan(x), F32)
    assert_type(group.recv(x, 0), F32)
    assert_type(group.recv((3,), 0, rw.ANY), Any)
    assert_type(group.all_gather(x, async_op=True), rw.Work[F32])
    assert_type(group.all_gather(x, async_op=True).result(), F32)
    assert_type(group.gather(x, async_op=True), rw.Work[F32 | None])
    assert_type(group.all_to_all_v(x, [1, 2], async_op=True), rw.Work[tuple[F32, list[int]]])
    assert_type(group.irecv(x, rw.ANY).wait(), F32)
    assert_type(group.isend(x, 0), rw.Work[None])


def others(x: F32, asynchronous: bool) -> None:
    group = rw.init(timeout=3)
    assert_type(group, rw.Group)
    assert_type(group.split(0), rw.Group)
    assert_type(group.split(group.rank % 2, name="half").all_reduce(x), F32)
    assert_type(group.split(0 if group.rank < 2 else None), rw.Group | None)
    assert_type(group.subgroup([0, 1]), rw.Group | None)
    assert_type(group.dup(), rw.Group)
    assert_type(group.ranks, tuple[int, ...])
    assert_type(group.probe(tag=rw.ANY), rw.Message | None)
    assert_type(rw.Mesh(group, dp=2, tp=-1).dp, rw.Group)
    assert_type(rw.wait_all([group.all_reduce(x, async_op=True)]), list[F32])
    assert_type(rw.wait_any([group.barrier(async_op=True)]), int)
    assert_type(rw.spawn(len, 2, "ab"), list[int])
    group.all_gather(x, async_op=asynchronous)


def functions_of_the_module(x: F32) -> None:
    assert_type(rw.all_reduce(x), F32)
    assert_type(rw.all_gather(x), F32)
    assert_type(rw.all_gather(x, async_op=True), rw.Work[F32])
    assert_type(rw.subgroup([0, 1], name="pair"), rw.Group | None)
    rw.barrier()


def operations_known_at_run_time(group: rw.Group, x: F32, name: str, op: rw.ReduceOp) -> None:
    assert_type(group.all_reduce(x, op), F32)
    assert_type(group.all_reduce(x, rw.ReduceOp[name.upper()]), F32)
    group.all_reduce(x, name)  # type: ignore[call-overload]


def gradients(group: rw.Group, t: torch.Tensor) -> None:
    assert_type(rw.autograd.all_reduce(t, "mean", group), torch.Tensor)
    assert_type(rw.autograd.all_gather(t), torch.Tensor)
    rw.autograd.all_reduce(t, "sun")  # type: ignore[arg-type]


async def awaited(group: rw.Group, x: F32) -> None:
    assert_type(await group.all_gather(x, async_op=True), F32)


def mistakes(group: rw.Group, x: F32) -> None:
    group.all_reduce(x, 3)  # type: ignore[call-overload]
    group.all_reduce(x, "sun")  # type: ignore[call-overload]
    group.reduce_scatter(x, op="minloc")  # type: ignore[call-overload]
    rw.overlap.GradientReducer([x], op="max")  # type: ignore[arg-type]
    group.broadcast(x, src="0")  # type: ignore[call-overload]
    group.send(x)  # type: ignore[call-arg]
    group.all_gather_w(x)  # type: ignore[attr-defined]
    print(rw.nonsense)  # type: ignore[attr-defined]
