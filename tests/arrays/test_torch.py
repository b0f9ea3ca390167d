"""torch tensors in host memory: used without a copy, and returned as tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rankwise.arrays import buffers
from rankwise.arrays.buffers import source, target
from rankwise.contract.types import DType
from rankwise.testing import run_ranks

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", DType)
def test_every_type(dtype: DType) -> None:
    x = source(torch.zeros(1)).kind.empty((2, 3), dtype).finish()
    assert isinstance(x, torch.Tensor)
    buffer = target(x)
    assert (buffer.ptr, buffer.count, buffer.dtype, buffer.shape) == (x.data_ptr(), 6, dtype, (2, 3))
    assert buffer.finish() is x


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda a: a[:, ::2], id="strided"),
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: a.to(torch.complex64).conj(), id="conjugate"),
        pytest.param(lambda a: a.to(torch.complex64).mul(1j).conj().imag, id="negative"),
    ],
)
def test_other_layouts_are_packed_and_put_back(view: Any) -> None:
    x = view(torch.arange(12.0).reshape(3, 4))
    want = x.clone()
    buffer = target(x)
    buffer.pack()
    assert torch.equal(buffer.array.resolve_conj(), want.resolve_conj())
    buffer.array.mul_(2)
    assert buffer.finish() is x
    assert torch.equal(x, want * 2)


def test_tensors_that_require_grad_are_refused_in_grad_mode() -> None:
    x = torch.ones(3, requires_grad=True)
    for check in (source, target):
        with pytest.raises(TypeError, match=r"^x: .* require grad, .*no_grad\(\), pass x.detach\(\), .* rw.autograd"):
            check(x)
    assert target(x.detach()).ptr == x.data_ptr()
    with torch.no_grad():
        assert target(x).finish() is x


OPERATIONS = [
    pytest.param(lambda group, x: group.all_reduce(x), id="all_reduce"),
    pytest.param(lambda group, x: group.all_reduce(x, async_op=True), id="all_reduce async"),
    pytest.param(lambda group, x: group.all_reduce(x, torch.maximum), id="function"),
    pytest.param(lambda group, x: group.all_reduce(x, "maxloc"), id="maxloc"),
    pytest.param(lambda group, x: group.broadcast(x), id="broadcast"),
    pytest.param(lambda group, x: group.reduce(x), id="reduce"),
    pytest.param(lambda group, x: group.gather(x), id="gather"),
    pytest.param(lambda group, x: group.all_gather(x), id="all_gather"),
    pytest.param(lambda group, x: group.all_gather(torch.ones(2), out=x), id="out"),
    pytest.param(lambda group, x: group.all_gather_v(x), id="all_gather_v"),
    pytest.param(lambda group, x: group.scatter(x), id="scatter"),
    pytest.param(lambda group, x: group.reduce_scatter(x), id="reduce_scatter"),
    pytest.param(lambda group, x: group.all_to_all(x), id="all_to_all"),
    pytest.param(lambda group, x: group.scan(x), id="scan"),
    pytest.param(lambda group, x: group.send(x, 0), id="send"),
    pytest.param(lambda group, x: group.recv(x, 0), id="recv"),
]


@pytest.mark.parametrize("call", OPERATIONS)
def test_every_operation_refuses_tensors_that_require_grad(call: Any) -> None:
    def ranks(group: Any) -> None:
        w = torch.ones(2, requires_grad=True)
        y = torch.exp(w)
        with pytest.raises(TypeError, match=r"rw\.autograd"):
            call(group, y)
        y.sum().backward()
        assert torch.equal(w.grad, y)  # which was not touched

    run_ranks(ranks, 1, backend="threads")


WRITES = [
    pytest.param(lambda group, x: group.all_reduce(x), id="all_reduce"),
    pytest.param(lambda group, x: group.all_reduce(x, async_op=True).wait(), id="all_reduce async"),
    pytest.param(lambda group, x: group.all_reduce(x[:, ::2]), id="packed"),
    pytest.param(lambda group, x: group.all_reduce(x, torch.maximum), id="function"),
    pytest.param(lambda group, x: group.broadcast(x, 1), id="broadcast"),
    pytest.param(lambda group, x: group.reduce(x), id="reduce"),
    pytest.param(lambda group, x: group.all_gather(torch.ones(4), out=x), id="out"),
    pytest.param(lambda group, x: (group.isend(torch.ones(2, 4), group.rank), group.recv(x, group.rank)), id="recv"),
    pytest.param(lambda group, x: group.batch([(torch.ones(2, 4), group.rank)], [(x, group.rank)]), id="batch"),
]


@pytest.mark.parametrize("write", WRITES)
def test_autograd_detects_a_write_to_a_saved_tensor(write: Any) -> None:
    def ranks(group: Any) -> None:
        w = torch.ones(2, 4, requires_grad=True)
        x = torch.full((2, 4), 3.0)
        loss = (w * x).sum()
        write(group, x)
        if group.rank == 0:  # where all of them write
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()

    run_ranks(ranks, 2)


def test_input_tensors_are_not_marked_as_written() -> None:
    def ranks(group: Any) -> None:
        x = torch.ones(4)
        group.all_gather(x)
        group.gather(x)
        group.isend(x, group.rank)
        group.recv((4,), group.rank, dtype=torch.float32)
        assert x._version == 0
        group.broadcast(x, src=0)
        group.reduce(x, dst=1)
        assert x._version == 2 * group.rank  # rank 1 received the broadcast and the sum

    run_ranks(ranks, 2)


def test_refusals() -> None:
    with pytest.raises(TypeError, match=r"^x: expected a tensor in host or CUDA memory, got one on meta$"):
        source(torch.empty(2, device="meta"))
    with pytest.raises(TypeError, match=r"^x: expected a dense tensor, got layout torch.sparse_coo$"):
        source(torch.eye(2).to_sparse())
    with pytest.warns(UserWarning, match="nested tensors is in prototype"):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for tensor in (nested, jagged):
        with pytest.raises(TypeError, match=r"^x: expected a dense tensor, got a nested one; pass the parts"):
            source(tensor)
    with pytest.raises(TypeError, match=r"^x: tensors of dtype torch.float8_e4m3fnuz are not supported"):
        source(torch.zeros(2, dtype=torch.float8_e4m3fnuz))
    with pytest.raises(ValueError, match=re.escape("out: expected dtype bfloat16, got float32")):
        buffers.result(torch.empty(2), (2,), source(torch.empty(2, dtype=torch.bfloat16)))
    with pytest.raises(TypeError, match=r"^dtype=torch.quint8: expected bool"):
        buffers.receiver((2,), torch.quint8)


def test_operations_give_tensors() -> None:
    def ranks(group: Any) -> None:
        x = torch.full((4,), group.rank + 1.0, dtype=torch.bfloat16)
        assert group.all_reduce(x) is x
        assert x.tolist() == [6] * 4
        gathered = group.all_gather(torch.tensor([[group.rank]]))
        assert isinstance(gathered, torch.Tensor)
        assert gathered.tolist() == [[[0]], [[1]], [[2]]]
        part = group.scatter(torch.arange(5) if group.rank == 1 else torch.empty(0), 1)
        assert part.tolist() == [[0, 1], [2, 3], [4]][group.rank]
        assert part.dtype is torch.int64
        out = np.empty((3, 2), np.float32)
        assert group.all_gather(torch.ones(2), out=out) is out
        assert (out == 1).all()
        work = group.isend(torch.full((2,), group.rank), (group.rank + 1) % 3)
        got = group.recv((2,), (group.rank - 1) % 3, dtype=torch.int64)
        assert isinstance(got, torch.Tensor)
        assert got.tolist() == [(group.rank - 1) % 3] * 2
        work.wait()

    run_ranks(ranks, 3)


def test_elements_that_share_memory_are_read_but_not_written() -> None:
    for x in (torch.zeros(1).expand(3), torch.zeros(2, 1).expand(2, 3), torch.zeros(5).as_strided((2, 3), (1, 1))):
        source(x)
        with pytest.raises(
            ValueError, match=r"^x: expected elements with memory of their own.* as x.contiguous\(\) ma"
        ):
            target(x)
    x = torch.zeros(8).as_strided((3, 2), (2, 3))  # these do not share any
    buffer = target(x)
    buffer.array[...] = torch.arange(6.0).reshape(3, 2)
    buffer.finish()
    assert x.ravel().tolist() == [*range(6)]
