"""The functions of the commands for losses, gradients and the seed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from rankwise.frontends.tcl.handles import Tensor
from rankwise.frontends.tcl.models import OK
from rankwise.frontends.tcl.parameters import invalid
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.tensors import Operand, shape_text
from rankwise.frontends.tcl.torch_tensors import to_floating_torch, to_numpy, to_torch


def mse_loss(session: Session, input: Operand, target: Operand, reduction: str) -> Operand:
    import torch

    if tuple(input.shape) != tuple(target.shape):
        shapes = f"{{{shape_text(target.shape)}}}, and the input's is {{{shape_text(input.shape)}}}"
        raise ValueError(f"Invalid -target parameter. Its shape is {shapes}.")
    given = to_floating_torch(input, "input")
    return torch.nn.functional.mse_loss(given, to_torch(target).to(given.dtype), reduction=reduction)


def cross_entropy_loss(
    session: Session, input: Operand, target: Tensor, weight: Tensor | None, reduction: str
) -> Operand:
    import torch

    if target.dtype.kind not in "iu":
        raise ValueError(
            f"Invalid -target parameter. Must be class indices of an integer type, not {target.dtype.name}."
        )
    if input.ndim not in (1, 2) or tuple(input.shape[:-1]) != target.shape:
        shapes = f"{{{shape_text(target.shape)}}} for an input of {{{shape_text(input.shape)}}}"
        raise ValueError(f"Invalid -target parameter. Must be one class for each row of the input, not {shapes}.")
    classes = input.shape[-1]
    wrong = target[(target < 0) | (target >= classes)]
    if wrong.size:
        raise invalid("target", wrong.reshape(-1)[0], f"Must be classes from 0 to {classes - 1}.")
    if weight is not None and weight.shape != (classes,):
        shape = f"{{{shape_text(weight.shape)}}}"
        raise ValueError(f"Invalid -weight parameter. Must be {classes} numbers, one for each class, not {shape}.")
    given = to_floating_torch(input, "input")
    weights = None if weight is None else to_torch(weight).to(given.dtype)
    indices = to_torch(target.astype(np.int64))
    return torch.nn.functional.cross_entropy(given, indices, weights, reduction=reduction)


def loss_function(session: Session, input: Operand, target: Operand) -> Operand:
    classes = to_numpy(target)
    if classes.dtype.kind in "iu":
        return cross_entropy_loss(session, input, classes, None, "mean")
    return mse_loss(session, input, target, "mean")


def backward(session: Session, input: Operand) -> str:
    if isinstance(input, np.ndarray):
        raise ValueError("Invalid -input parameter. The tensor was not computed from one that requires gradients.")
    if input.numel() != 1:
        raise ValueError(f"Invalid -input parameter. Must have one element, not shape {{{shape_text(input.shape)}}}.")
    try:
        input.backward()
    except RuntimeError as error:
        raise ValueError(f"Invalid -input parameter. {str(error).partition('. ')[0]}.") from None
    return OK


def tensor_grad(session: Session, input: Operand) -> Tensor:
    if isinstance(input, np.ndarray) or not input.is_leaf:
        raise ValueError("Invalid -input parameter. The tensor was not made to require gradients.")
    if input.grad is None:
        raise ValueError("Invalid -input parameter. There is no gradient yet; torch::backward computes it.")
    return np.array(to_numpy(input.grad))


def manual_seed(session: Session, seed: int) -> str:
    session.random = np.random.default_rng(seed)
    if find_spec("torch") is not None:
        import torch

        torch.manual_seed(seed)
    return "ok"
