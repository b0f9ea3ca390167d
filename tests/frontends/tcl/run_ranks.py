"""Runs the commands for real on the ranks of `rankwise run` and checks shapes, values and errors.

A program: test_ranks.py runs it on 1 to 4 ranks. Every rank knows what every rank passes, so that
NumPy says what must come. Errors are made on all ranks alike, and after each the group must work.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from numpy.typing import NDArray

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.session import Session

RANK, N = int(os.environ["RANKWISE_RANK"]), int(os.environ["RANKWISE_WORLD_SIZE"])
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
REDUCE = {"sum": np.add.reduce, "max": np.max, "min": np.min, "product": np.multiply.reduce, "mean": np.mean}
ROWS = (1, 5, 8)  # fewer than ranks, uneven, even

session = Session(COMMANDS)


def call(command: str, *words: object) -> str:
    code, text, _ = session.answer(command, [str(word) for word in words])
    assert code == "ok", f"{command} {words}: {text}"
    return text


def error(command: str, *words: object) -> str:
    code, text, why = session.answer(command, [str(word) for word in words])
    assert code == "error", f"{command} {words} gave {text}"
    assert why.startswith("RANKWISE ")
    works()
    return text


def works() -> None:
    assert call("tensor_item", call("distributed_all_reduce", call("ones", "1"))) == str(float(N))


def values(rank: int, rows: int, dtype: str) -> NDArray[np.float64]:
    """What rank `rank` passes: small numbers, which every dtype holds."""
    numbers = np.random.default_rng(1000 * rank + rows).integers(0, 4, (rows, 2))
    return (numbers % 2 if dtype == "bool" else numbers).astype(np.float64)


def tensor(rows: int, dtype: str, rank: int = RANK) -> str:
    numbers = " ".join(str(int(number)) for number in values(rank, rows, dtype).reshape(-1))
    return call("tensor_create", "-data", numbers, "-shape", f"{rows} 2", "-dtype", dtype)


def same(handle: str, expected: NDArray[np.float64], dtype: str) -> None:
    found = session.handles.tensors[handle]
    assert found.dtype.name == dtype
    assert found.shape == expected.shape, f"{found.shape}, not {expected.shape}"
    tolerance = 1e-2 if dtype in ("bfloat16", "float16") else 1e-6
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance)


def part(whole: NDArray[np.float64], rank: int = RANK) -> NDArray[np.float64]:
    return np.array_split(whole, N)[rank]


def collectives(rows: int, dtype: str) -> None:
    mine = tensor(rows, dtype)
    everyones = np.stack([values(rank, rows, dtype) for rank in range(N)])
    for root in range(N):
        nothing = np.empty((0, rows, 2))
        same(call("distributed_gather", mine, root), everyones if root == RANK else nothing, dtype)
        same(call("distributed_scatter", "-src", root, "-tensor", mine), part(everyones[root]), dtype)
        same(call("distributed_broadcast", mine, root), everyones[root], dtype)
        total = everyones.max(0) if root == RANK else everyones[RANK]
        same(call("distributed_reduce", mine, root, "max"), total, dtype)
    same(call("distributed_gather", mine, -1), everyones, dtype)
    same(call("distributed_all_gather", mine), everyones, dtype)
    for op, reduce in REDUCE.items():
        if op == "mean" and dtype in ("bool", "int64", "int32", "int16", "int8", "uint8"):
            text = error("distributed_reduce_scatter", mine, op)
            assert text.startswith(f'Invalid -op parameter: "mean". The tensor is of {dtype}: '), text
            continue
        total = reduce(everyones, axis=0)
        if dtype == "bool":
            total = (total > 0).astype(np.float64)
        same(call("distributed_reduce_scatter", mine, op), part(total), dtype)
        same(call("distributed_all_reduce", mine, op), total, dtype)
    if rows % N == 0:
        exchanged = np.concatenate([part(everyones[rank]) for rank in range(N)])
        same(call("distributed_all_to_all", mine), exchanged, dtype)
    same(mine, everyones[RANK], dtype)  # no command changes what it is given


def messages() -> None:
    right, left = (RANK + 1) % N, (RANK - 1) % N
    sending = call("distributed_isend", tensor(4, "int32"), right, 3)
    assert sending == f"isend_handle_dst{right}_tag3"
    receiving = call("distributed_irecv", "-shape", "4 2", "-src", left, "-tag", 3, "-dtype", "int32")
    assert receiving == f"irecv_handle_src{left}_tag3"
    same(call("distributed_wait", receiving), values(left, 4, "int32"), "int32")
    assert call("distributed_test", sending) in ("true", "false")
    assert call("distributed_wait", sending) == "send_completed"
    if N > 1:
        for command in ("distributed_wait", "distributed_test"):
            assert error(command, sending).startswith(f'Invalid -handle parameter: "{sending}".')
    # Two operations with one peer and one tag have a handle each, and are waited for in any order.
    sendings = [call("distributed_isend", tensor(rows, "int32"), right) for rows in (1, 5)]
    receivings = [call("distributed_irecv", "-shape", f"{rows} 2", "-src", left, "-dtype", "int32") for rows in (1, 5)]
    assert N == 1 or receivings == [f"irecv_handle_src{left}_tag0", f"irecv_handle_src{left}_tag0_2"]
    for handle, rows in list(zip(receivings, (1, 5), strict=True))[:: -1 if N > 1 else 1]:
        same(call("distributed_wait", handle), values(left, rows, "int32"), "int32")
    assert [call("distributed_wait", handle) for handle in sendings] == ["send_completed"] * 2
    sending = call("distributed_isend", call("full", "2", RANK), right)
    assert call("tensor_to_list", call("distributed_recv", "2", left)) == f"{float(left)} {float(left)}"
    call("distributed_wait", sending)


def groups() -> None:
    assert error("distributed_all_reduce", "-tensor", tensor(2, "int32"), "-group", "evens") == (
        'Invalid -group parameter: "evens". Groups made by distributed_new_group: none.'
    )
    evens = list(range(0, N, 2))
    assert call("distributed_new_group", "evens", " ".join(map(str, evens))) == "evens"
    mine = tensor(5, "int64")
    if RANK in evens:
        everyones = np.stack([values(rank, 5, "int64") for rank in evens])
        same(call("distributed_gather", "-tensor", mine, "-dst", -1, "-group", "evens"), everyones, "int64")
        same(call("distributed_all_reduce", "-tensor", mine, "-group", "evens"), everyones.sum(0), "int64")
        last = len(evens) - 1  # src is numbered within the group
        expected = np.array_split(everyones[last], len(evens))[RANK // 2]
        same(call("distributed_scatter", mine, last, "evens"), expected, "int64")
    else:
        text = session.answer("distributed_gather", [mine, "0", "evens"])[1]
        ranks = " ".join(map(str, evens))
        assert text == f'Invalid -group parameter: "evens". Its ranks are {ranks}, and this is rank {RANK}.', text
    works()
    assert (
        error("distributed_new_group", "evens", "0") == 'Invalid -name parameter: "evens". A group of this name exists.'
    )
    assert "each once" in error("distributed_new_group", "twice", "0 0")
    assert f"0 to {N - 1}" in error("distributed_new_group", "far", f"0 {N}")


def errors() -> None:
    mine = tensor(4, "float32")
    last = N - 1
    for command, option in (("scatter", "src"), ("gather", "dst"), ("reduce", "dst"), ("broadcast", "root")):
        expected = f'Invalid -{option} parameter: "{N}". Must be a rank from 0 to {last}'
        assert error(f"distributed_{command}", mine, N).startswith(expected)
    assert error("distributed_gather", mine, -2).endswith("or -1 for every rank.")
    assert error("distributed_scatter", mine, -1) == "Required parameter missing: -tensor, or invalid src parameter"
    assert error("distributed_send", mine, N).startswith(f'Invalid -dst parameter: "{N}".')
    assert error("distributed_recv", "2", -1).startswith('Invalid -src parameter: "-1".')
    for command in ("scatter", "reduce_scatter", "all_to_all"):
        text = error(f"distributed_{command}", call("ones", ""))
        assert text == "Invalid -tensor parameter. A tensor of shape {} has no first dimension to split.", text
    assert error("distributed_send", "nonexistent", 0) == 'Invalid tensor handle: "nonexistent"'
    assert error("distributed_gather", "nonexistent") == "Invalid tensor name"
    assert error("distributed_scatter", "nonexistent") == "Invalid tensor handle"
    assert error("distributed_reduce_scatter", "nonexistent", "sum") == "Invalid tensor handle"
    assert error("distributed_gather", "-tensor", mine, "-dst") == "Missing value for parameter"
    assert error("distributed_init", 0, N + 4, "gloo") == (
        f'Invalid -worldSize parameter: "{N + 4}". rankwise run started {N} ranks.'
    )
    assert error("distributed_init", 0, N, "warp") == (
        'Invalid -backend parameter: "warp". Must be one of gloo, nccl, mpi, shm, hierarchical.'
    )
    other = (RANK + 1) % N
    if N > 2 and RANK == 1:
        assert session.answer("distributed_init", [str(other), str(N), "gloo"])[1] == (
            f'Invalid -rank parameter: "{other}". rankwise run made this process rank {RANK}.'
        )
    works()


def barrier() -> None:
    """The last rank comes late; nobody leaves before it has come."""
    call("distributed_barrier")
    came = 0.0
    if RANK == N - 1:
        time.sleep(0.2)
        came = time.monotonic()
    assert call("distributed_barrier") == f"Barrier synchronized ({N} processes)"
    left = time.monotonic()
    came = float(call("tensor_item", call("distributed_all_reduce", call("tensor_create", str(came), "float64"))))
    assert left >= came, f"the barrier let rank {RANK} through {came - left:.3f} s before the last had come"


def initialize() -> None:
    assert (call("get_rank"), call("get_world_size"), call("is_distributed")) == (str(RANK), str(N), "0")
    assert call("distributed_barrier") == "Distributed not initialized"
    alone = call("distributed_gather", tensor(2, "int32"), 99, "any group")
    assert session.handles.tensors[alone].shape == (1, 2, 2)
    assert call("distributed_init", 0, 1, "gloo").startswith(
        "Distributed training initialized (single GPU): rank=0, world_size=1, backend=gloo"
    )
    said = call("distributed_init", 0, N, "nccl")  # 0 on every rank
    assert said == (
        f"Distributed training initialized ({N} processes): rank={RANK}, world_size={N}, backend=shm "
        "(Note: nccl is not available here, shm is)"
    ), said
    assert (call("get_rank"), call("get_world_size"), call("is_distributed")) == (str(RANK), str(N), "1")


def finalize() -> None:
    assert call("distributed_finalize") == "Distributed training finalized"
    assert call("distributed_barrier") == "Distributed not initialized"
    call("distributed_init", "-worldSize", N, "-rank", RANK)
    works()


if __name__ == "__main__":
    if N == 1:  # the mode of one rank: gather adds a dimension of 1, which is the group's size
        call("distributed_init", 0, 1)
    else:
        initialize()
    for rows in ROWS:
        for dtype in DTYPES:
            collectives(rows, dtype)
    messages()
    if N > 1:
        groups()
        errors()
        barrier()
        finalize()
    session.close()
    print("all well")
    sys.exit(0)
