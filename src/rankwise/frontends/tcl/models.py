"""The functions of the commands for modules, losses, gradients and the seed. A module is a torch.nn.Module."""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.frontends.tcl.handles import Tensor, to_floating_torch, to_numpy, to_torch
from rankwise.frontends.tcl.parameters import invalid
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.tensors import Operand, floating, shape_text

if TYPE_CHECKING:
    import torch

OK = "OK"

# The torch.nn classes of the activations, by the name that their command and torch's function share.
_ACTIVATIONS = {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "Tanh"}


def linear(session: Session, in_features: int, out_features: int, bias: bool, dtype: np.dtype[Any]) -> torch.nn.Module:
    import torch

    return torch.nn.Linear(in_features, out_features, bias, dtype=getattr(torch, floating(dtype).name))


def activation(name: str) -> Callable[..., Any]:
    """A command that returns the module, or applies its function to an input."""

    def command(session: Session, input: Operand | None) -> Operand | torch.nn.Module:
        import torch

        return getattr(torch.nn, _ACTIVATIONS[name])() if input is None else getattr(torch, name)(to_torch(input))

    return command


def dropout(session: Session, input: Operand | None, p: float, training: bool) -> Operand | torch.nn.Module:
    import torch

    if not 0 <= p <= 1:
        raise invalid("p", p, "Must be a probability, from 0 to 1.")
    if input is None:
        return torch.nn.Dropout(p)
    given = to_floating_torch(input, "input")
    return _apart_from(given, torch.dropout(given, p, training))


def sequential(session: Session, modules: tuple[torch.nn.Module, ...]) -> torch.nn.Module:
    import torch

    return torch.nn.Sequential(*modules)


def model_forward(session: Session, model: torch.nn.Module, input: Operand) -> Operand:
    given = to_torch(input)
    try:
        return _apart_from(given, model(given))
    except RuntimeError as error:
        kind = f"{to_numpy(input).dtype.name} {{{shape_text(input.shape)}}}"
        why = str(error).partition("\n")[0]
        raise ValueError(f"Invalid -input parameter. The module cannot take a tensor of {kind}: {why}") from None


def _apart_from(given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The result; a copy if torch has returned its input, because two handles must not share their elements."""
    return result.clone() if result is given else result


def set_mode(session: Session, model: torch.nn.Module, training: bool) -> str:
    model.train(training)
    return OK


def parameters(session: Session, model: torch.nn.Module) -> tuple[str, ...]:
    """The handles of the parameters, the same ones in every call."""
    handles = {id(tensor): handle for handle, tensor in session.handles.tensors.items()}
    return tuple(handles.get(id(parameter)) or session.handles.add(parameter) for parameter in model.parameters())


def gradients(session: Session, model: torch.nn.Module) -> Tensor:
    """All gradients, concatenated and padded with zeros to a multiple of the world size."""
    flat = flat_gradients(list(model.parameters()), "model")
    padding = -flat.size % session.world.world_size
    return np.concatenate([flat, np.zeros(padding, flat.dtype)])


def flat_gradients(parameters: list[torch.Tensor], option: str) -> Tensor:
    """The gradients of the parameters as one vector; zeros for a parameter that the loss did not depend on."""
    if all(parameter.grad is None for parameter in parameters):
        must = "Its parameters have no gradients; torch::backward of a loss computes them."
        raise ValueError(f"Invalid -{option} parameter. {must}")
    return np.concatenate(
        [
            np.zeros(parameter.numel(), to_numpy(parameter).dtype)
            if parameter.grad is None
            else to_numpy(parameter.grad).reshape(-1)
            for parameter in parameters
        ]
    )


# ---- files ----


def save(session: Session, model: torch.nn.Module, file: str) -> str:
    """Replaces the file atomically, so that several ranks may write the same one."""
    import torch

    target = os.path.realpath(file)
    if os.path.exists(target) and not os.path.isfile(target):
        raise invalid("file", file, "Must be a regular file.")
    part = f"{target}.{secrets.token_hex(4)}.part"
    try:
        with open(part, "xb") as out:
            torch.save({"module": _description(model), "state": model.state_dict()}, out)
        os.replace(part, target)
    except OSError as error:
        raise invalid("file", file, f"{error.strerror}.") from None
    finally:
        with suppress(FileNotFoundError):
            os.remove(part)
    return OK


def load(session: Session, file: str, model: str | None) -> str:
    """Returns the handle of the module with the file's parameters: a new one, or `model`."""
    import torch

    try:
        with open(file, "rb") as stream:
            state = torch.load(stream, weights_only=True)
        module = _built(state["module"])
        module.load_state_dict(state["state"])
    except OSError as error:
        raise invalid("file", file, f"{error.strerror}.") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError):
        raise invalid("file", file, "Must be a file that model_save wrote.") from None
    if model is None:
        return session.handles.add(module)
    given = session.handles.module(model)
    if _description(given) != state["module"]:
        raise invalid(
            "model", model, f"The file has {_text(state['module'])}, the model is {_text(_description(given))}."
        )
    given.load_state_dict(state["state"])
    return model


def _description(module: torch.nn.Module) -> list[Any]:
    """How to build the module: the name of its command, then the arguments."""
    import torch

    if isinstance(module, torch.nn.Sequential):
        return ["sequential", *map(_description, module)]
    if isinstance(module, torch.nn.Linear):
        dtype = to_numpy(module.weight).dtype.name
        return ["linear", module.in_features, module.out_features, module.bias is not None, dtype]
    if isinstance(module, torch.nn.Dropout):
        return ["dropout", module.p]
    return [type(module).__name__.lower()]


def _built(description: list[Any]) -> torch.nn.Module:
    import torch

    name, *rest = description
    if name == "sequential":
        return torch.nn.Sequential(*map(_built, rest))
    if name == "linear":
        in_features, out_features, bias, dtype = rest
        return torch.nn.Linear(in_features, out_features, bias, dtype=getattr(torch, dtype))
    if name == "dropout":
        return torch.nn.Dropout(*rest)
    module: torch.nn.Module = getattr(torch.nn, _ACTIVATIONS[name])()
    return module


def _text(description: list[Any]) -> str:
    """The description as text, such as linear(64, 10, True, float32)."""
    name, *rest = description
    return f"{name}({', '.join(_text(part) if isinstance(part, list) else str(part) for part in rest)})"


# ---- losses, gradients and the seed ----


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
