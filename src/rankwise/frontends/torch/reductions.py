"""torch's element types and reduction operations as the engine's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp as TorchOp

from rankwise.arrays.torch import dtypes
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.types import DType, ReduceOp
from rankwise.frontends.torch.tensors import Memory, is_plain, room, sources, target

REDUCED: dict[torch.dtype, DType] = dtypes()
"""The types that the engine reduces."""

_OPS = {
    TorchOp.SUM: ReduceOp.SUM,
    TorchOp.PRODUCT: ReduceOp.PROD,
    TorchOp.MIN: ReduceOp.MIN,
    TorchOp.MAX: ReduceOp.MAX,
    TorchOp.AVG: ReduceOp.MEAN,
    TorchOp.BAND: ReduceOp.BAND,
    TorchOp.BOR: ReduceOp.BOR,
    TorchOp.BXOR: ReduceOp.BXOR,
}
OPS: dict[int, ReduceOp] = {int(theirs): ours for theirs, ours in _OPS.items()}  # type: ignore[call-overload]
"""By torch's number. PREMUL_SUM is not among them: it is made of a product and a sum."""

BY_HASH = {hash(TorchOp(theirs)): int(ours) for theirs, ours in _OPS.items()}
"""The engine's number of each operation by the hash of torch's object, of which nothing else is as quick to ask."""

_BY_SIZE = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64, 16: DType.C128}


def moved(dtype: torch.dtype) -> DType:
    """A DType of the same size, by which elements of `dtype` are moved without reduction."""
    known = REDUCED.get(dtype)
    return _BY_SIZE[dtype.itemsize] if known is None else known


class Reduction:
    """A reduction of elements of `given` by torch's `op`. Raises ValueError if it is meaningless.

    Types that the engine does not reduce are converted to float32 or complex64 and rounded at the end.

    ours, dtype  the engine's operation and element type
    work         torch's name for that element type
    factor       what PREMUL_SUM multiplies by before it adds
    in_place     whether the caller's own memory can be reduced as it is
    """

    def __init__(self, op: Any, given: torch.dtype) -> None:
        premul = op == TorchOp.PREMUL_SUM
        if not premul and int(op.op) not in OPS:
            raise UnsupportedError(f"reduction by {op.op}", "rankwise")
        self.ours = ReduceOp.SUM if premul else OPS[int(op.op)]
        self.given, self.work = given, _worked(given)
        self.dtype = REDUCED[self.work]
        self.factor: float | Tensor | None = op.__getstate__()[1] if premul else None
        if isinstance(self.factor, Tensor):
            self.factor = self.factor.reshape(())  # of one element, which then leaves the shape as it is
        self.in_place = self.factor is None and self.work is given
        why = self.ours.refused_for(self.dtype)
        if why is not None:
            raise ValueError(f"op={op.op}: {why}")

    def source(self, *tensors: Tensor) -> Memory:
        """Memory to read the elements of all `tensors` from."""
        if self.in_place:
            return sources(tensors)
        return room(tensors, self.work, self._fill)

    def target(self, tensor: Tensor) -> Memory:
        return target(tensor) if self.work is self.given else room((tensor,), self.work, put_back=True)

    def both(self, tensor: Tensor) -> Memory:
        """For an operation in place."""
        if self.in_place and is_plain(tensor):
            return target(tensor)
        return room((tensor,), self.work, self._fill, put_back=True)

    def _fill(self, part: Tensor, tensor: Tensor) -> None:
        part.copy_(tensor if self.factor is None else tensor.to(self.work).mul(self.factor))


def _worked(given: torch.dtype) -> torch.dtype:
    """The type in which the engine reduces elements of `given`."""
    if given in REDUCED:
        return given
    if given.is_complex:
        return torch.complex64
    if given.is_floating_point:
        return torch.float32
    raise UnsupportedError(f"reduction of {given}", "rankwise", "it is no type of numbers")


_known: dict[tuple[int, torch.dtype], Reduction] = {}


def reduction(op: Any, given: torch.dtype) -> Reduction:
    """The Reduction of elements of `given` by torch's `op`; reductions without a factor are cached."""
    number = op.op.value
    found = _known.get((number, given))
    if found is None:
        found = Reduction(op, given)
        if found.factor is None:
            _known[number, given] = found
    return found
