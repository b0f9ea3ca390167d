"""The functions of the optimizer commands. An optimizer steps all parameters, or this rank's shard of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rankwise.frontends.tcl.handles import Tensor, to_numpy, to_torch
from rankwise.frontends.tcl.models import OK, flat_gradients
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.worlds import Alone

if TYPE_CHECKING:
    import torch


class Optimizer:
    """A torch optimizer of one part of the parameters, which are treated as one flat vector.

    The part is the whole vector or this rank's shard (ZeRO stage 1: each of n ranks holds 1/n of the
    optimizer's state). The first step decides which, because the state of one part is useless for another.
    """

    def __init__(self, parameters: list[torch.Tensor], kind: Any, options: dict[str, Any]) -> None:
        import torch

        self.parameters = parameters
        self.total = sum(parameter.numel() for parameter in parameters)
        self._part = torch.empty(0, dtype=parameters[0].dtype)
        self._start = 0
        self._torch: torch.optim.Optimizer = kind([self._part], **options)

    def check(self, start: int, length: int) -> None:
        """Raises ValueError if earlier steps changed another part of the flat vector."""
        before = self._part.numel()
        if before and (start, length) != (self._start, before):
            state, given = (f"elements {a} to {a + n - 1}" for a, n in ((self._start, before), (start, length)))
            raise ValueError(
                f"Invalid -gradients parameter. This optimizer keeps state for {state} of {self.total} and cannot step "
                f"{given}. Pass the same part of the gradients in every step, or make a new optimizer."
            )

    def step(self, start: int, gradients: torch.Tensor) -> torch.Tensor:
        """Step the elements from `start` on; returns their new values. The padding behind the last one stays zero."""
        if not self._part.numel():
            self._start = start
            self._part.resize_(gradients.numel()).zero_()
        for elements, places in self._elements(start, start + gradients.numel()):
            self._part[places] = elements
        self._part.grad = gradients
        self._torch.step()
        self._part.grad = None
        return self._part

    def write(self, values: torch.Tensor) -> None:
        """Copy the new values, a flat vector, into all parameters."""
        for elements, places in self._elements(0, self.total):
            elements.copy_(values[places])

    def state_bytes(self) -> int:
        """The bytes of the state tensors, which have the shape of the part; step counters are left out."""
        values = [value for state in self._torch.state.values() for value in state.values()]
        return sum(value.nbytes for value in values if getattr(value, "shape", None) == self._part.shape)

    def _elements(self, start: int, stop: int) -> Iterator[tuple[torch.Tensor, slice]]:
        """Views of the parameters' elements from start to stop of the flat vector, with their slices of that range."""
        offset = 0
        for parameter in self.parameters:
            end = offset + parameter.numel()
            first, last = max(start, offset), min(stop, end)
            if first < last:
                yield parameter.detach().view(-1)[first - offset : last - offset], slice(first - start, last - start)
            offset = end


def sgd(
    session: Session,
    parameters: tuple[Any, ...],
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
) -> Optimizer:
    import torch

    options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    return Optimizer(_checked(parameters), torch.optim.SGD, {**options, "nesterov": nesterov})


def adaptive(name: str) -> Callable[..., Optimizer]:
    """The command for the torch.optim class of this name, Adam or AdamW."""

    def command(
        session: Session, parameters: tuple[Any, ...], lr: float, beta1: float, beta2: float, weight_decay: float
    ) -> Optimizer:
        import torch

        options = {"lr": lr, "betas": (beta1, beta2), "weight_decay": weight_decay}
        return Optimizer(_checked(parameters), getattr(torch.optim, name), options)

    return command


def _checked(parameters: tuple[Any, ...]) -> list[torch.Tensor]:
    import torch

    def refuse(why: str) -> ValueError:
        return ValueError(f"Invalid -parameters parameter. Must be tensors that require gradients, {why}.")

    for number, parameter in enumerate(parameters):
        if not isinstance(parameter, torch.Tensor) or not parameter.is_leaf:
            raise refuse(f"and number {number} of the list does not")
    if not parameters:
        raise refuse("and the list is empty")
    if len(set(map(id, parameters))) < len(parameters):
        raise refuse("each once")
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    if len(dtypes) > 1:
        raise refuse(f"all of one type, not {' and '.join(dtypes)}")
    return list(parameters)


def step(session: Session, optimizer: Optimizer, gradients: Tensor | None) -> str:
    ranks = session.world.ranks
    total = optimizer.total
    given = flat_gradients(optimizer.parameters, "optimizer") if gradients is None else gradients.reshape(-1)
    wanted = to_numpy(optimizer.parameters[0]).dtype
    if given.dtype != wanted:
        raise ValueError(
            f"Invalid -gradients parameter. The tensor is of {given.dtype.name}, the parameters {wanted.name}."
        )
    world_size = session.world.world_size
    shard = -(-total // world_size)
    alone = isinstance(ranks, Alone)
    sharded = not alone and gradients is not None and given.size == shard
    if not sharded and given.size not in (total, shard * world_size):
        sizes = f"{total}, or {shard * world_size} with padding" + ("" if alone else f", or {shard} in a rank's shard")
        raise ValueError(
            f"Invalid -gradients parameter. The parameters have {total} elements. The gradients must have {sizes}, "
            f"not {given.size}."
        )
    start = session.world.rank * shard if sharded else 0
    part = to_torch(given if sharded else given[:total])
    optimizer.check(start, part.numel())
    stepped = optimizer.step(start, part)
    optimizer.write(to_torch(ranks.all_gather(to_numpy(stepped))).reshape(-1) if sharded else stepped)
    return OK


def zero_grad(session: Session, optimizer: Optimizer, set_to_none: bool) -> str:
    for parameter in optimizer.parameters:
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()
    return OK
