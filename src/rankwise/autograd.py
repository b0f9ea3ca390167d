"""Differentiable collectives for torch's autograd: `rw.autograd.all_reduce(x)` has a gradient.

`group.all_reduce(x)` has none; the operations of a group refuse a tensor that requires grad while
grad mode is on.

Each takes a dense tensor in host memory, which it does not change, and returns a new one. Its `group` is by default
the group of all ranks. torch is imported when one of them is called first.

Gradients refer to the sum of all ranks' losses: the gradient of `x` on a rank is the derivative of that
sum with respect to this rank's x. They may be differentiated again (create_graph=True).

The backward pass is collective too: it calls one operation for each one in the forward pass, in reverse
order. So every rank that called an operation must run a backward pass through its result; one whose
loss does not depend on it adds `0 * y.sum()`. If x requires grad on one rank, the result requires grad
on all of them. All ranks must call in the same grad mode, else each raises MismatchError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from rankwise.arrays.ops import Op
    from rankwise.group.group import Group

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]


def all_reduce(x: torch.Tensor, op: Op = "sum", group: Group | None = None) -> torch.Tensor:
    """The sum or mean of `x` over the ranks, on every rank: a new tensor of x's shape, which is the same on all.

    Gradient: grad x = all_reduce(grad y, op).

    Args:
        op: "sum" or "mean".

    Example:
        >>> import torch
        >>> w = torch.full((2,), float(group.rank), requires_grad=True)
        >>> y = rw.autograd.all_reduce(w * w, group=group)
        >>> y.sum().backward()
        >>> y.tolist(), w.grad.tolist() == [4.0 * group.rank] * 2
        ([1.0, 1.0], True)
    """
    from rankwise.frontends.torch import autograd

    return autograd.all_reduce(x, op, group)


def all_gather(x: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Every rank's `x`, by rank, on every rank: shape (world_size, *x.shape). x has the same shape on all ranks.

    Gradient: grad x = grad y[rank], this rank's row, summed over the ranks.

    Example:
        >>> import torch
        >>> w = torch.ones(2, requires_grad=True)
        >>> y = rw.autograd.all_gather(w, group=group)
        >>> y[0].sum().backward()
        >>> y.shape, w.grad.tolist() == ([2.0, 2.0] if group.rank == 0 else [0.0, 0.0])
        (torch.Size([2, 2]), True)
    """
    from rankwise.frontends.torch import autograd

    return autograd.all_gather(x, group)


def reduce_scatter(x: torch.Tensor, op: Op = "sum", group: Group | None = None) -> torch.Tensor:
    """This rank's part of the sum or mean of `x` over the ranks, axis 0 split as numpy.array_split does.

    Gradient: grad x = the ranks' grad y, concatenated along axis 0, for "mean" divided by the number of ranks.

    Args:
        x: has the same shape on all ranks.
        op: "sum" or "mean".

    Example:
        >>> import torch
        >>> w = torch.arange(4.0).requires_grad_()
        >>> y = rw.autograd.reduce_scatter(w, group=group)
        >>> (y * (group.rank + 1)).sum().backward()
        >>> y.tolist() == [[0.0, 2.0], [4.0, 6.0]][group.rank], w.grad.tolist()
        (True, [1.0, 1.0, 2.0, 2.0])
    """
    from rankwise.frontends.torch import autograd

    return autograd.reduce_scatter(x, op, group)


def all_to_all(x: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Part j of `x` goes to rank j, axis 0 split as numpy.array_split does; the parts received, by rank, along axis 0.

    Gradient: the parts of grad y go back to where they came from.

    Args:
        x: has the same shape on all ranks.

    Example:
        >>> import torch
        >>> w = torch.ones(2, requires_grad=True)
        >>> y = rw.autograd.all_to_all(w, group=group)
        >>> (y * (group.rank + 1)).sum().backward()
        >>> w.grad.tolist()
        [1.0, 2.0]
    """
    from rankwise.frontends.torch import autograd

    return autograd.all_to_all(x, group)


def broadcast(x: torch.Tensor, src: int = 0, group: Group | None = None) -> torch.Tensor:
    """`x` of rank `src`, on every rank: a new tensor.

    Gradient: grad x = the sum over the ranks of grad y, on rank src; zeros on the others.

    Args:
        x: gives the shape and dtype alone, but on rank `src`.

    Example:
        >>> import torch
        >>> w = torch.full((2,), float(group.rank), requires_grad=group.rank == 1)
        >>> y = rw.autograd.broadcast(w, src=1, group=group)
        >>> y.sum().backward()  # on all ranks
        >>> y.tolist(), w.grad.tolist() if group.rank == 1 else [2.0, 2.0]
        ([1.0, 1.0], [2.0, 2.0])
    """
    from rankwise.frontends.torch import autograd

    return autograd.broadcast(x, src, group)
