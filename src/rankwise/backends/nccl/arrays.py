"""Arrays in device memory: what torch, CuPy, Numba and JAX hold, for the nccl backend."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex

from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.types import DType, ReduceOp

if TYPE_CHECKING:
    from rankwise.backends.nccl.communicator import NcclCommunicator

_CODES = {
    "f8": DType.F64, "f4": DType.F32, "f2": DType.F16, "i8": DType.I64, "i4": DType.I32, "i2": DType.I16,
    "i1": DType.I8, "u8": DType.U64, "u4": DType.U32, "u2": DType.U16, "u1": DType.U8, "b1": DType.BOOL,
    "c8": DType.C64, "c16": DType.C128,
}  # fmt: skip
_NAMES = {
    "float64": DType.F64, "float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16,
    "float8_e4m3fn": DType.FP8E4M3, "float8_e5m2": DType.FP8E5M2, "int64": DType.I64, "int32": DType.I32,
    "int16": DType.I16, "int8": DType.I8, "uint64": DType.U64, "uint32": DType.U32, "uint16": DType.U16,
    "uint8": DType.U8, "bool": DType.BOOL, "complex64": DType.C64, "complex128": DType.C128,
}  # fmt: skip
_OPS = {
    "sum": ReduceOp.SUM, "mean": ReduceOp.MEAN, "avg": ReduceOp.MEAN, "max": ReduceOp.MAX, "min": ReduceOp.MIN,
    "product": ReduceOp.PROD, "prod": ReduceOp.PROD, "band": ReduceOp.BAND, "bor": ReduceOp.BOR, "bxor": ReduceOp.BXOR,
}  # fmt: skip
_LEGACY = 1  # cudaStreamLegacy, the stream of programs that name none


@dataclass(frozen=True)
class DeviceArray:
    """Contiguous device memory. stream: where what fills it was launched; the program waits there for what we do."""

    ptr: int
    shape: tuple[int, ...]
    dtype: DType
    writable: bool
    stream: int

    @property
    def count(self) -> int:
        return prod(self.shape)

    @classmethod
    def of(cls, x: Any) -> DeviceArray | None:
        """None for what is not in device memory, not contiguous, or of a type that does not travel.

        Also for a tensor that autograd follows, which the general way refuses.
        """
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            # Its __cuda_array_interface__ knows no bfloat16 and no fp8.
            dtype = _NAMES.get(str(x.dtype).removeprefix("torch."))
            if not x.is_cuda or not x.is_contiguous() or dtype is None or x.is_conj() or x.is_neg():
                return None
            if x.requires_grad and torch.is_grad_enabled():
                return None
            stream = torch.cuda.current_stream(x.device).cuda_stream
            return cls(x.data_ptr(), tuple(x.shape), dtype, True, stream or _LEGACY)
        found = getattr(x, "__cuda_array_interface__", None)
        if found is None or found.get("mask") is not None:
            return None
        order, code = found["typestr"][0], found["typestr"][1:]
        dtype = _NAMES.get(str(getattr(x, "dtype", ""))) or _CODES.get(code)
        shape = tuple(found["shape"])
        if dtype is None or order == ">" or found.get("strides") not in (None, _contiguous(shape, dtype.itemsize)):
            return None
        ptr, read_only = found["data"]
        return cls(ptr, shape, dtype, not read_only, found.get("stream") or _LEGACY)


class DeviceShortcuts(Shortcuts):
    """The operations on arrays in device memory; the results of those that make new ones go to `out`.

    What was launched on an array's stream before is waited for on the device; the call returns when
    its own result is there.
    """

    def __init__(self, comm: NcclCommunicator) -> None:
        self._comm = comm

    def all_reduce_array(self, x: object, op: object) -> bool:
        array, how = DeviceArray.of(x), _op(op)
        if array is None or how is None or not array.writable:
            return False
        return self._do([array], lambda: self._comm.all_reduce(array.ptr, array.count, array.dtype, how), x)

    def broadcast_array(self, x: object, src: object) -> bool:
        array, root = DeviceArray.of(x), self._rank(src)
        if array is None or root is None or not array.writable:
            return False
        written = None if root == self._comm.rank else x
        return self._do([array], lambda: self._comm.broadcast(array.ptr, array.count, array.dtype, root), written)

    def reduce_array(self, x: object, dst: object, op: object) -> bool:
        array, root, how = DeviceArray.of(x), self._rank(dst), _op(op)
        if array is None or root is None or how is None or not array.writable:
            return False
        written = x if root == self._comm.rank else None
        return self._do([array], lambda: self._comm.reduce(array.ptr, array.count, array.dtype, how, root), written)

    def all_gather_array(self, x: object, out: object) -> bool:
        pair = _pair(x, out, lambda shape: (self._comm.world_size, *shape))
        if pair is None:
            return False
        send, recv = pair
        return self._do(pair, lambda: self._comm.all_gather(send.ptr, recv.ptr, send.count, send.dtype), out)

    def reduce_scatter_array(self, x: object, op: object, out: object) -> bool:
        pair, how = _pair(x, out, self._part), _op(op)
        if pair is None or how is None:
            return False
        send, recv = pair
        return self._do(pair, lambda: self._comm.reduce_scatter(send.ptr, recv.ptr, recv.count, send.dtype, how), out)

    def all_to_all_array(self, x: object, out: object) -> bool:
        pair, n = _pair(x, out, lambda shape: shape), self._comm.world_size
        if pair is None or self._part(pair[0].shape) is None:
            return False
        send, recv = pair
        return self._do(pair, lambda: self._comm.all_to_all(send.ptr, recv.ptr, send.count // n, send.dtype), out)

    def send_array(self, x: object, dst: object, tag: object) -> bool:
        array, peer, label = DeviceArray.of(x), self._rank(dst), _index(tag)
        if array is None or peer is None or label is None:
            return False
        return self._do([array], lambda: self._comm.send(array.ptr, array.count, array.dtype, peer, label))

    def recv_array(self, x: object, src: object, tag: object) -> bool:
        array, peer, label = DeviceArray.of(x), self._rank(src), _index(tag)
        if array is None or peer is None or label is None or not array.writable:
            return False
        return self._do([array], lambda: self._comm.recv(array.ptr, array.count, array.dtype, peer, label), x)

    def _rank(self, value: object) -> int | None:
        number = _index(value)
        return number if number is not None and number < self._comm.world_size else None

    def _part(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of each rank's part of axis 0; None where that does not come out even."""
        if not shape or shape[0] % self._comm.world_size:
            return None
        return (shape[0] // self._comm.world_size, *shape[1:])

    def _do(self, arrays: Any, launch: Callable[[], object], written: object = None) -> bool:
        streams = self._comm.cuda_streams
        event = streams.create_event()
        try:
            for stream in {array.stream for array in arrays}:
                streams.record_on_stream(event, stream)
                streams.comm_stream_wait_event(event)
            launch()
            self._comm.sync()
        finally:
            streams.destroy_event(event)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(written, torch.Tensor) and not written.is_inference():
            torch.autograd.graph.increment_version(written)  # a backward pass that needs what it held raises
        return True


def _index(value: object) -> int | None:
    """An int from 0 on; None for anything else."""
    number = operator.index(value) if isinstance(value, SupportsIndex) else -1
    return number if number >= 0 else None


def _op(op: object) -> ReduceOp | None:
    return op if isinstance(op, ReduceOp) else _OPS.get(op) if isinstance(op, str) else None


def _pair(
    x: object, out: object, wanted: Callable[[tuple[int, ...]], tuple[int, ...] | None]
) -> tuple[DeviceArray, DeviceArray] | None:
    """x and out, where both are device arrays of one type and out's shape is what is wanted for x's."""
    given, taken = DeviceArray.of(x), DeviceArray.of(out)
    if given is None or taken is None or not taken.writable or given.dtype is not taken.dtype:
        return None
    return (given, taken) if taken.shape == wanted(given.shape) else None


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
