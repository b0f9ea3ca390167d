"""Tensors that the engine takes through DLPack's C exchange API: torch's, and those of other libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from rankwise.arrays import buffers, dtypes
from rankwise.arrays import torch as torch_arrays
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.types import DType, ReduceOp
from rankwise.testing import run_ranks

torch = pytest.importorskip("torch")
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this torch has no C exchange API", allow_module_level=True)

Call = Callable[[Any, Any, Any], Any]
"""Runs an operation on an array, and another with room for the arrays of all ranks; returns what it has written."""


def broadcast(group: Any, x: Any, room: Any) -> Any:
    group.broadcast(x, 1)
    return None if group.rank == 1 else x


def all_to_all(group: Any, x: Any, room: Any) -> Any:
    return group.all_to_all(room, out=torch.empty_like(room) if isinstance(room, torch.Tensor) else room.copy())


def sent_around(group: Any, x: Any, room: Any) -> Any:
    sending = group.isend(x, (group.rank + 1) % group.world_size)
    received = group.recv(room[0], (group.rank - 1) % group.world_size)
    sending.wait()
    return received


def sent(group: Any, x: Any, room: Any) -> Any:
    if group.rank:
        return group.recv(room[0], 0)
    for other in range(1, group.world_size):
        group.send(x, other)
    return None


def by_counts(name: str, group: Any, x: Any, room: Any) -> Any:
    """The vector collectives, as a front-end calls them."""
    n, first = group.world_size, group.rank == 0
    counts = [len(x)] * n
    whole = room.reshape(-1)
    calls = {
        "all_gather_v": (x, whole, counts, None),
        "gather_v": (x, 0, whole, counts, None) if first else (x, 0, None, None, None),
        "scatter_v": (whole, counts, None, 0, x) if first else (None, None, None, 0, x),
        "all_to_all_v": (x, [len(x) // n] * n, None, whole, [len(x) // n] * n, None),
        "all_gather_parts": (x, whole),
        "gather_parts": (x, 0, whole if first else None),
        "scatter_parts": (whole if first else None, 0, x),
    }
    assert getattr(group.comm.shortcuts, f"{name}_array")(*calls[name])
    return x if name.startswith("scatter") else room if first or name.startswith("all") else None


CALLS: dict[str, Call] = {
    "sum": lambda group, x, room: group.all_reduce(x),
    "prod": lambda group, x, room: group.all_reduce(x, "prod"),
    "min": lambda group, x, room: group.all_reduce(x, "min"),
    "max": lambda group, x, room: group.all_reduce(x, "max"),
    "mean": lambda group, x, room: group.all_reduce(x, "mean"),
    "reduce": lambda group, x, room: group.reduce(x, 1),
    "broadcast": broadcast,
    "gather": lambda group, x, room: group.gather(x, 1, out=room if group.rank == 1 else None),
    "all_gather": lambda group, x, room: group.all_gather(x, out=room),
    "scatter": lambda group, x, room: group.scatter(room if group.rank == 1 else None, 1, out=x[None]),
    "reduce_scatter": lambda group, x, room: group.reduce_scatter(room, out=x[None]),
    "all_to_all": all_to_all,
    "isend and recv": sent_around,
    "send and recv": sent,
    **{
        name: partial(by_counts, name)
        for name in (
            "all_gather_v",
            "gather_v",
            "scatter_v",
            "all_to_all_v",
            "all_gather_parts",
            "gather_parts",
            "scatter_parts",
        )
    },
}


def bytes_of(x: Any) -> bytes:
    found: bytes = (x.view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else x).tobytes()
    return found


def values(rank: int, shape: tuple[int, ...], dtype: DType) -> Any:
    return np.random.default_rng(rank).integers(0, 4, shape).astype(dtypes.to_numpy(dtype))


def to_tensor(array: Any, dtype: DType) -> Any:
    return torch.from_numpy(array.copy().view(np.uint8)).view(torch_arrays.to_torch(dtype))


def unused(*arguments: object, **named: object) -> None:
    raise AssertionError("the general path was taken")


OPS = {"sum": ReduceOp.SUM, "prod": ReduceOp.PROD, "min": ReduceOp.MIN, "max": ReduceOp.MAX, "mean": ReduceOp.MEAN}
OPS["reduce"] = OPS["reduce_scatter"] = ReduceOp.SUM
CASES = [(dtype, name) for dtype in DType for name in CALLS if name not in OPS or not OPS[name].refused_for(dtype)]


@pytest.mark.parametrize(("dtype", "name"), CASES, ids=lambda each: getattr(each, "name", each))
def test_every_operation_and_type_as_for_numpy(dtype: DType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, call = 3, CALLS[name]

    def ranks(group: Any) -> None:
        arrays = values(group.rank, (6,), dtype), values(group.rank + n, (n, 6), dtype)
        x, room = (to_tensor(array, dtype) for array in arrays)
        want, result = call(group, *arrays), call(group, x, room)
        assert (result is None) == (want is None)
        if result is not None:
            assert bytes_of(result) == bytes_of(want)
        for tensor in (x, room):
            is_result = result is not None and shares(tensor, result)
            assert tensor._version == is_result, "only what is written is marked as written"

    monkeypatch.setattr(buffers, "_made", unused)
    run_ranks(ranks, n)


def shares(x: Any, y: Any) -> bool:
    same: bool = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return same


def test_results_without_out_are_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(group: Any) -> None:
        gathered = group.all_gather(torch.full((2,), group.rank, dtype=torch.bfloat16))
        assert (gathered.dtype, gathered.tolist()) == (torch.bfloat16, [[0, 0], [1, 1]])

    monkeypatch.setattr(buffers, "_made", unused)
    run_ranks(ranks, 2)


class Subclass(torch.Tensor):  # type: ignore[misc]
    pass


def inference(x: Any) -> Any:
    with torch.inference_mode():
        return x.clone()


PLAIN = {
    "0-d": lambda x: x[0].clone(),
    "no elements": lambda x: x[:0],
    "a row": lambda x: torch.stack([x, x])[1],
    "made in inference mode": inference,
    "copied when it is written": lambda x: torch._lazy_clone(x),
}
OTHERS = {
    "strided": lambda x: torch.stack([x, x], 1)[:, 0],
    "negative": lambda x: torch._neg_view(x),
    "conjugate": lambda x: x.to(torch.complex64).conj(),
    "unaligned": lambda x: torch.frombuffer(bytearray(b" " + bytes_of(x)), dtype=x.dtype, offset=1),
    "requires grad": lambda x: x.clone().requires_grad_(),
    "with a history": lambda x: x.clone().requires_grad_() * 1,
    "parameter": lambda x: torch.nn.Parameter(x.clone(), requires_grad=False),
    "subclass": lambda x: x.clone().as_subclass(Subclass),
}


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_what_is_plain(name: str) -> None:
    """The others take the general path, with the same result."""

    def ranks(group: Any) -> None:
        x = {**PLAIN, **OTHERS}[name](torch.arange(1.0, 5.0))
        with torch.no_grad():
            before = x.clone()
            assert group.comm.shortcuts.all_reduce_array(x, "sum") is (name in PLAIN)
            if name in OTHERS:
                assert torch.equal(x, before)
                assert group.all_reduce(x) is x
            assert torch.equal(x, before * 2)

    run_ranks(ranks, 2)


def test_a_write_to_a_copy_on_write_tensor_leaves_the_original() -> None:
    x = torch.arange(4.0)
    clone = torch._lazy_clone(x)
    run_ranks(lambda group: group.all_gather(torch.full((4,), 7.0), out=clone.view(1, 4)), 1)
    assert (x.tolist(), clone.tolist()) == ([0, 1, 2, 3], [7] * 4)


NO_MEMORY = {
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "complex32": lambda x: x.to(torch.complex32),
    "functional": lambda x: torch._to_functional_tensor(x),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", NO_MEMORY)
def test_refused_tensors_are_refused_in_the_same_words(name: str) -> None:
    def ranks(group: Any) -> None:
        x = NO_MEMORY[name](torch.ones(2))
        with pytest.raises(TypeError, match=r"^x: expected a|^x: tensors of dtype") as by_buffers:
            buffers.target(x)
        with pytest.raises(TypeError) as by_group:
            group.all_reduce(x)
        assert str(by_group.value) == str(by_buffers.value)

    run_ranks(ranks, 1)


def test_fake_tensors_and_those_of_transforms_are_left_alone() -> None:
    from torch._subclasses import FakeTensorMode

    def ranks(group: Any) -> None:
        def taken(x: Any) -> Any:
            assert not group.comm.shortcuts.all_reduce_array(x, "sum")
            return (x * x).sum()

        with FakeTensorMode():
            taken(torch.ones(2))
        torch.func.vmap(taken)(torch.ones(3, 2))
        assert torch.func.grad(taken)(torch.ones(2)).tolist() == [2, 2]

    run_ranks(ranks, 1)


# ---- tensors of another library ----


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dims", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


TensorOfObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


class Exchange(ctypes.Structure):
    pass


Exchange._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("previous", ctypes.POINTER(Exchange)),
    ("others", ctypes.c_void_p * 3),
    ("tensor_of", TensorOfObject),
    ("stream", ctypes.c_void_p),
]


class Tensor:
    """Two float32 after four unused bytes. Its library offers a future version of the interface beside the present."""

    def __init__(self) -> None:
        self.data = np.array([0, 1, 2], np.float32)
        self.shape, self.strides = (ctypes.c_int64 * 1)(2), (ctypes.c_int64 * 1)(1)


@TensorOfObject
def describe(tensor: Any, out: Any) -> int:
    found = DLTensor(tensor.data.ctypes.data, (1, 0), 1, 2, 32, 1, tensor.shape, tensor.strides, 4)
    ctypes.memmove(out, ctypes.byref(found), ctypes.sizeof(found))
    return 0


@TensorOfObject
def refuse(tensor: Any, out: Any) -> int:
    return -1


PRESENT = Exchange(1, 3, None, (None,) * 3, describe, None)
FUTURE = Exchange(2, 0, ctypes.pointer(PRESENT), (None,) * 3, refuse, None)
REFUSING = Exchange(1, 3, None, (None,) * 3, refuse, None)
NAME = b"dlpack_exchange_api"


def capsule(exchange: Exchange) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(exchange), NAME, None)


class Refusing(Tensor):
    __dlpack_c_exchange_api__ = capsule(REFUSING)


Tensor.__dlpack_c_exchange_api__ = capsule(FUTURE)  # type: ignore[attr-defined]


def test_tensors_of_other_libraries_are_read() -> None:
    def ranks(group: Any) -> None:
        shortcuts, out = group.comm.shortcuts, np.zeros((1, 2), np.float32)
        assert shortcuts.all_gather_result(Tensor(), out) is out
        assert out.tolist() == [[1, 2]]
        assert not shortcuts.all_reduce_array(Tensor(), "sum"), "whether they may be written is not known"
        assert shortcuts.all_gather_result(Tensor(), None) is NOT_TAKEN, "nor how a new one is made"
        assert shortcuts.all_gather_result(Refusing(), out) is NOT_TAKEN
        assert shortcuts.all_gather_result(type("Derived", (Tensor,), {})(), out) is NOT_TAKEN

    run_ranks(ranks, 1)
