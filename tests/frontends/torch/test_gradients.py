"""autograd treats the operations of torch.distributed on rankwise as on gloo."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed

WARNING = "an autograd kernel was not registered to the Autograd key"

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda y: dist.all_reduce(y),
    "all_reduce async": lambda y: dist.all_reduce(y, async_op=True).wait(),
    "broadcast": lambda y: dist.broadcast(y, 0),
}
MORE = {  # of which gloo says nothing
    "all_reduce of a view": lambda y: dist.all_reduce(y[::2]),
    "reduce": lambda y: dist.reduce(y, 0),
}


def backward(rank: int, size: int, operations: Any = IN_PLACE) -> dict[str, tuple[bool, Any]]:
    """For each operation: whether the backward pass through what it wrote warned, and the gradient."""
    found = {}
    for name, call in operations.items():
        for grad_mode in (True, False):
            w = torch.ones(4, requires_grad=True)
            y = w * 2
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with torch.set_grad_enabled(grad_mode):
                    call(y)
                y.sum().backward()
            warned = any(WARNING in str(warning.message) for warning in caught)
            found[f"{name}, {grad_mode}"] = (warned, w.grad.tolist())
    return found


def test_a_backward_pass_through_what_was_written_warns_as_on_gloo(on_ranks: Callable[..., Any]) -> None:
    ours, theirs = (on_ranks(2, backward, backend=backend) for backend in ("rankwise", "gloo"))
    assert ours == theirs
    assert {name for name, (warned, _) in ours[0].items() if warned} == {f"{name}, True" for name in IN_PLACE}
    for found in on_ranks(2, partial(backward, operations=MORE)):
        assert {name for name, (warned, _) in found.items() if warned} == {f"{name}, True" for name in MORE}


def test_a_tensor_is_hooked_once_however_often_it_is_written(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        w = torch.ones(2, requires_grad=True)
        for _ in range(3):
            dist.all_reduce(w)
        with pytest.warns(UserWarning, match=f"^rankwise all_reduce: {WARNING}") as caught:
            w.sum().backward()
        assert len(caught) == 1

    on_ranks(2, body)


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_differentiable_functions_of_torch(on_ranks: Callable[..., Any], n: int) -> None:
    def body(rank: int, size: int) -> None:
        import torch.distributed.nn.functional as differentiable

        def gradient(call: Callable[[Any], Any], *shape: int) -> Any:
            """Of the sum over the ranks of (rank + 1) * everything that the rank received."""
            x = torch.ones(shape, requires_grad=True)
            y = call(x * 1)
            parts = y if isinstance(y, tuple | list) else [y]
            (sum(part.sum() for part in parts) * (rank + 1)).backward()
            return x.grad.tolist()

        every = sum(range(1, size + 1))
        of_each = [float(other + 1) for other in range(size)]
        group = dist.group.WORLD
        assert gradient(lambda x: differentiable.all_reduce(x, group=group), 2) == [every] * 2
        assert gradient(lambda x: differentiable.all_gather(x, group=group), 2) == [every] * 2
        assert gradient(lambda x: differentiable.broadcast(x, 1, group), 2) == [every if rank == 1 else 0] * 2
        assert gradient(lambda x: differentiable.reduce(x, 0, group=group), 2) == [1] * 2
        assert gradient(lambda x: differentiable.gather(x, 0, group), 2) == [1] * 2
        found = gradient(lambda x: differentiable.scatter(list(x.unbind()), 0, group), size, 1)
        assert found == ([[one] for one in of_each] if rank == 0 else [[0]] * size)
        found = gradient(
            lambda x: differentiable.reduce_scatter(torch.empty(1), list(x.unbind()), group=group), size, 1
        )
        assert found == [[one] for one in of_each]
        empty = [torch.empty(1) for _ in range(size)]
        found = gradient(lambda x: differentiable.all_to_all(empty, list(x.unbind()), group), size, 1)
        assert found == [[one] for one in of_each]
        found = gradient(lambda x: differentiable.all_to_all_single(torch.empty(size), x, group=group), size)
        assert found == of_each

    on_ranks(n, body)
