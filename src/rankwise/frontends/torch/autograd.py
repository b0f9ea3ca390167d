"""Linear operations over the ranks that torch's autograd follows: each has its adjoint as its gradient.

`rankwise.autograd`, which loads this when one of its functions is called, documents them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from rankwise.arrays import ops
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import source
from rankwise.arrays.ops import Op
from rankwise.contract.errors import MismatchError
from rankwise.contract.operations import check_rank
from rankwise.contract.types import ReduceOp
from rankwise.group.base import check_axis_0, integer
from rankwise.group.default_group import default_group
from rankwise.group.group import Group

Operation = Callable[[Tensor], Tensor]

# What the ranks tell each other before an operation, as bits.
_REQUIRES_GRAD, _GRAD_MODE_OFF = 1, 2


def all_reduce(x: Tensor, op: Op, group: Group | None) -> Tensor:
    group, given = _checked(x, group)
    name = _sum_or_mean(op, given)

    def reduce(x: Tensor) -> Tensor:
        return group.all_reduce(_copy(x), name)

    return _linear(x, group, reduce, reduce)


def all_gather(x: Tensor, group: Group | None) -> Tensor:
    group, _ = _checked(x, group)
    return _linear(x, group, group.all_gather, lambda grad: group.reduce_scatter(grad)[0])


def reduce_scatter(x: Tensor, op: Op, group: Group | None) -> Tensor:
    group, given = _checked(x, group)
    check_axis_0(given)
    name = _sum_or_mean(op, given)
    even = len(x) % group.world_size == 0

    def concatenate(grad: Tensor) -> Tensor:
        whole = _as_tensor(group.all_gather(grad).flatten(0, 1) if even else group.all_gather_v(grad))
        return whole / group.world_size if name == "mean" else whole

    return _linear(x, group, lambda x: group.reduce_scatter(x, name), concatenate)


def all_to_all(x: Tensor, group: Group | None) -> Tensor:
    group, given = _checked(x, group)
    check_axis_0(given)
    even = len(x) % group.world_size == 0

    def exchange_back(grad: Tensor) -> Tensor:
        if even:
            return _as_tensor(group.all_to_all(grad))
        rows = len(grad) // group.world_size  # from each rank, this one's share of its rows
        return _as_tensor(group.all_to_all_v(grad, [rows] * group.world_size)[0])

    return _linear(x, group, group.all_to_all, exchange_back)


def broadcast(x: Tensor, src: int, group: Group | None) -> Tensor:
    group, _ = _checked(x, group)
    src = check_rank(integer(src, "src"), group.world_size, "src")

    def sum_to_src(grad: Tensor) -> Tensor:
        total = group.reduce(_copy(grad), src)
        return torch.zeros_like(grad) if total is None else total

    return _linear(x, group, lambda x: group.broadcast(_copy(x), src), sum_to_src)


class _Linear(torch.autograd.Function):
    """A linear operation over the ranks. Its gradient is the adjoint, of which the operation is the gradient again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, operation: Operation, adjoint: Operation) -> Tensor:
        ctx.backward_of = group, operation, adjoint
        return operation(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        group, operation, adjoint = ctx.backward_of
        # Only with create_graph=True does anybody ask for the gradient of a gradient.
        gradient = _linear(grad, group, adjoint, operation) if torch.is_grad_enabled() else adjoint(grad)
        return gradient, None, None, None


def _linear(x: Tensor, group: Group, operation: Operation, adjoint: Operation) -> Tensor:
    """Call the operation so that either every rank's result requires grad or none does.

    The backward pass is collective: a rank that had nothing to do in it would leave the others waiting.
    """
    mode = _GRAD_MODE_OFF if not torch.is_grad_enabled() else _REQUIRES_GRAD if x.requires_grad else 0
    anywhere = group.all_reduce(mode, "bor")
    if anywhere == _REQUIRES_GRAD | _GRAD_MODE_OFF:
        raise MismatchError(
            "rw.autograd: a rank gave a tensor that requires grad, and another one called with grad mode off, "
            "so it would not take part in the backward pass; expected all ranks in one grad mode"
        )
    if anywhere == _REQUIRES_GRAD and not x.requires_grad and (x.is_floating_point() or x.is_complex()):
        x = x.detach().requires_grad_()  # whose gradient nobody reads
    return _as_tensor(_Linear.apply(x, group, operation, adjoint))  # type: ignore[no-untyped-call]


def _checked(x: Tensor, group: Group | None) -> tuple[Group, Buffer]:
    """The group, and what is known of `x`: what is wrong with that raises here, before anything is sent."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x: expected a torch.Tensor, got {type(x).__name__}")
    if is_functorch_wrapped_tensor(x):
        raise TypeError(
            "x: expected a tensor with data, got one of a transform of torch.func (grad, vmap, jvp, ...), which the "
            "operations of rw.autograd do not support; compute gradients by backward() or torch.autograd.grad, and "
            "pass all rows at once instead of vmap"
        )
    return default_group() if group is None else group, source(x.detach())


def _sum_or_mean(op: Op, given: Buffer) -> Literal["sum", "mean"]:
    resolved = None if ops.is_composed(op) else ops.resolve(op, given.dtype)
    if resolved is ReduceOp.SUM:
        return "sum"
    if resolved is ReduceOp.MEAN:
        return "mean"
    raise ValueError(
        f"op={op!r}: expected 'sum' or 'mean'; others are had of rw.autograd.all_gather(x), by amax(0) or prod(0)"
    )


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _as_tensor(result: Any) -> Tensor:
    """What the array level gives for a tensor, which its types do not say."""
    assert isinstance(result, Tensor)
    return result
