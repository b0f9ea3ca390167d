"""rw.autograd: gradients through collectives, compared with the numerical ones of all ranks' operation as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rankwise as rw
from rankwise.testing import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")

CASES: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], Any]]] = {
    "all_reduce sum": ((2, 2), lambda x, group: rw.autograd.all_reduce(x, group=group)),
    "all_reduce mean": ((), lambda x, group: rw.autograd.all_reduce(x, "mean", group)),
    "all_gather": ((2, 2), lambda x, group: rw.autograd.all_gather(x, group)),
    "all_gather 0-d": ((), lambda x, group: rw.autograd.all_gather(x, group)),
    "reduce_scatter even": ((6,), lambda x, group: rw.autograd.reduce_scatter(x, group=group)),
    "reduce_scatter mean": ((6,), lambda x, group: rw.autograd.reduce_scatter(x, "mean", group)),
    "reduce_scatter uneven": ((5, 2), lambda x, group: rw.autograd.reduce_scatter(x, "avg", group)),
    "reduce_scatter of few rows": ((1, 2), lambda x, group: rw.autograd.reduce_scatter(x, group=group)),
    "all_to_all even": ((6,), lambda x, group: rw.autograd.all_to_all(x, group)),
    "all_to_all uneven": ((5, 2), lambda x, group: rw.autograd.all_to_all(x, group)),
    "broadcast": ((3,), lambda x, group: rw.autograd.broadcast(x, group.world_size - 1, group)),
    "twice": ((4,), lambda x, group: rw.autograd.all_reduce(rw.autograd.all_gather(x * x, group).sin(), "mean", group)),
    "strided": ((2, 3), lambda x, group: rw.autograd.all_reduce(x.t()[::2], group=group)),
}


SECOND = ("all_reduce mean", "all_gather", "reduce_scatter uneven", "all_to_all uneven", "broadcast", "twice")
"""Cases whose second derivatives are checked on several ranks too: each backward function once."""


def whole(
    operation: Callable[[Any], Any], group: Any, sizes: list[int], shape: tuple[int, ...]
) -> Callable[[Any], Any]:
    """All ranks' operation as one function of all their inputs, flat, to all their outputs; the same on each rank."""
    import torch

    class Pick(torch.autograd.Function):
        """This rank's part of what all ranks have."""

        @staticmethod
        def forward(ctx: Any, every: Any, sizes: list[int]) -> Any:
            ctx.sizes = sizes
            return every.split(sizes)[group.rank].clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return Collect.apply(grad), None

    class Collect(torch.autograd.Function):
        """All ranks' parts, on each of them."""

        @staticmethod
        def forward(ctx: Any, part: Any) -> Any:
            ctx.sizes = group.all_gather(len(part)).tolist()
            return group.all_gather_v(part)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return Pick.apply(grad, ctx.sizes)

    def function(every: Any) -> Any:
        return Collect.apply(operation(Pick.apply(every, sizes).view(shape)).reshape(-1))

    return function


@pytest.mark.parametrize(("n", "dtype"), [(1, "float64"), (2, "complex128"), (3, "float64")])
def test_gradients_are_the_numerical_ones(n: int, dtype: str) -> None:
    def ranks(group: Any) -> None:
        import torch

        torch.set_num_threads(1)
        for name, (shape, operation) in CASES.items():
            count = torch.Size(shape).numel()
            inputs = torch.arange(1.0, n * count + 1, dtype=torch.float64).div(7).to(getattr(torch, dtype))
            function = whole(partial(operation, group=group), group, [count] * n, shape)
            checks = [torch.autograd.gradcheck]
            if n == 1 or name in SECOND:
                checks.append(torch.autograd.gradgradcheck)
            for check in checks:
                try:
                    assert check(function, inputs.requires_grad_(), fast_mode=True)
                except Exception as error:
                    raise AssertionError(f"{name}: {error}") from error

    run_ranks(ranks, n, backend="threads" if n == 1 else "shm", timeout=200)


def test_inputs_are_left_alone_and_results_are_new() -> None:
    def ranks(group: Any) -> None:
        for shape, operation in CASES.values():
            x = torch.ones(shape, requires_grad=True)
            y = operation(x, group)
            assert y.requires_grad
            assert torch.equal(x, torch.ones(shape))
            assert y.data_ptr() != x.data_ptr() or not y.numel()
            assert x._version == 0

    run_ranks(ranks, 2)


def test_a_rank_whose_tensor_requires_no_grad_takes_part_in_the_backward_pass() -> None:
    def ranks(group: Any) -> Any:
        group.timeout = 20
        w = torch.full((2,), 3.0, requires_grad=group.rank == 1)
        y = rw.autograd.broadcast(w if group.rank == 1 else torch.empty(2), 1, group)
        z = rw.autograd.all_reduce(y * (group.rank + 1), group=group)
        z.sum().backward()
        return y.requires_grad, None if w.grad is None else w.grad.tolist()

    assert run_ranks(ranks, 3) == [(True, None), (True, [18.0, 18.0]), (True, None)]


def test_without_gradients_nothing_is_recorded() -> None:
    def ranks(group: Any) -> None:
        assert not rw.autograd.all_reduce(torch.ones(2), group=group).requires_grad
        assert rw.autograd.all_reduce(torch.ones(2, dtype=torch.int32), group=group).tolist() == [2, 2]
        with torch.no_grad():
            assert not rw.autograd.all_gather(torch.ones(2, requires_grad=True), group).requires_grad

    run_ranks(ranks, 2)


def test_ranks_in_different_grad_modes_are_told_so() -> None:
    def ranks(group: Any) -> Any:
        with (
            torch.set_grad_enabled(group.rank != 1),
            pytest.raises(rw.MismatchError, match="expected all ranks in one"),
        ):
            rw.autograd.all_reduce(torch.ones(2, requires_grad=True), group=group)
        return group.all_reduce(1)

    assert run_ranks(ranks, 3) == [3, 3, 3]


def test_bad_arguments_do_no_harm() -> None:
    def ranks(group: Any) -> Any:
        if group.rank == 0:
            with pytest.raises(TypeError, match=r"^x: expected a torch.Tensor, got list$"):
                rw.autograd.all_reduce([1.0], group=group)
            with pytest.raises(ValueError, match=r"^op='max': expected 'sum' or 'mean'; .* amax"):
                rw.autograd.all_reduce(torch.ones(2), "max", group)
            with pytest.raises(ValueError, match=r"^op='sun': expected one of"):
                rw.autograd.reduce_scatter(torch.ones(2), "sun", group)
            with pytest.raises(ValueError, match=r"^x: expected an array with an axis 0"):
                rw.autograd.all_to_all(torch.tensor(1.0), group)
            with pytest.raises(ValueError, match=r"^src=2: expected a rank"):
                rw.autograd.broadcast(torch.ones(2), 2, group)
        return group.all_reduce(1)

    assert run_ranks(ranks, 2) == [2, 2]


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacrev"])
def test_the_transforms_of_torch_func_are_refused_before_anything_is_sent(transform: str) -> None:
    def body(group: rw.Group) -> None:
        called = getattr(torch.func, transform)(lambda x: rw.autograd.all_reduce(x, group=group).sum())
        with pytest.raises(TypeError, match=r"^x: expected a tensor with data, got one of a transform of torch\.func"):
            called(torch.ones(2, 3))
        assert rw.autograd.all_reduce(torch.ones(1), group=group).item() == 2

    run_ranks(body, 2)


def test_the_default_group_is_used() -> None:
    def ranks(group: Any) -> Any:
        rw.init()
        x = torch.ones(2, requires_grad=True)
        y = rw.autograd.all_reduce(x)
        y.sum().backward()
        return x.grad.tolist()

    assert rw.spawn(ranks, 1, None) == [[1.0, 1.0]]


def test_torch_is_imported_when_a_function_is_called() -> None:
    import subprocess

    code = "import sys, rankwise as rw; rw.autograd.all_reduce; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
