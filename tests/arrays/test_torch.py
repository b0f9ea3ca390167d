"""torch tensors: in host memory, without a copy, and back as tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rankwise.arrays import buffers
from rankwise.arrays.buffers import source, target
from rankwise.contract.errors import UnsupportedError
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
    assert torch.equal(buffer.array.resolve_conj(), want.resolve_conj())
    buffer.array.mul_(2)
    assert buffer.finish() is x
    assert torch.equal(x, want * 2)


def test_tensors_that_need_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    assert target(x).finish() is x


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"device memory .torch.Tensor on meta"):
        source(torch.empty(2, device="meta"))
    with pytest.raises(TypeError, match=r"^x: expected a dense tensor, got layout torch.sparse_coo$"):
        source(torch.eye(2).to_sparse())
    with pytest.raises(TypeError, match=r"^x: tensors of dtype torch.float8_e4m3fnuz do not travel"):
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

    run_ranks(3, ranks)
