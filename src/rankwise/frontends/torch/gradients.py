"""Warns when a backward pass reaches a tensor that a collective wrote in place, which autograd did not record.

For backends that torch's C++ calls, its dispatcher gives this warning. torch calls the methods of a Python
ProcessGroup without the dispatcher, so rankwise gives the warning here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor


def warn_in_backward(written: Sequence[Tensor], operation: str) -> None:
    """Have the backward pass warn where it comes by one of the tensors that `operation` writes in place."""
    for tensor in written:
        if tensor.requires_grad and torch.is_grad_enabled():
            hook = _hook(operation)
            followed = tensor if tensor._base is None else tensor._base  # gradients of a view pass through its base
            if followed.requires_grad and hook not in (followed._backward_hooks or {}).values():
                followed.register_hook(hook)  # type: ignore[no-untyped-call]


@cache
def _hook(operation: str) -> Callable[[Tensor], None]:
    def warn(grad: Tensor) -> None:
        warnings.warn(
            f"rankwise {operation}: an autograd kernel was not registered to the Autograd key(s) but we are trying to "
            "backprop through it. Its gradient is that of a program without the operation. Call it within "
            "torch.no_grad(), or use torch.distributed.nn.functional, whose operations have gradients",
            stacklevel=2,
        )

    return warn
