"""Hooks that compress: their results, that they lose nothing for good, and that a model learns with them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits.py"


def digits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits", DIGITS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step(reducer: rw.overlap.GradientReducer, *gradients: Any) -> list[Any]:
    for number, gradient in enumerate(gradients):
        reducer.mark_ready(number, gradient)
    return [np.array(one) for one in reducer.wait_and_unpack()]


@pytest.mark.parametrize(("backend", "n"), [("shm", 2), ("threads", 3)])
def test_bf16(backend: str, n: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def ranks(group: Group) -> None:
        random = [np.random.default_rng(rank) for rank in range(n)]
        params = [np.zeros((20, 30), np.float32), np.zeros(500), np.zeros(5, np.float16)]
        reducer = rw.overlap.GradientReducer(params, group, 1000, hook=rw.overlap.BF16Hook())
        for _ in range(3):
            every = [[one.standard_normal(p.shape).astype(p.dtype) for p in params] for one in random]
            found = step(reducer, *every[group.rank])
            for place, got in enumerate(found):
                given = [np.asarray(one[place]) for one in every]
                if place < 2:
                    given = [one.astype(ml_dtypes.bfloat16) for one in given]
                exact = np.mean([one.astype(np.float64) for one in given], axis=0)
                assert got.dtype == params[place].dtype
                np.testing.assert_allclose(got, exact, rtol=2**-8)
                assert (np.stack(group.all_gather(got)) == got).all()

    run_ranks(n, ranks, backend=backend)


def test_bf16_of_tensors() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer([torch.zeros(300)], group, op="sum", hook=rw.overlap.BF16Hook())
        reducer.mark_ready(0, torch.full((300,), 1.0 + group.rank))
        assert (reducer.wait_and_unpack()[0] == 3).all()

    run_ranks(2, ranks)


def test_top_k_sends_the_largest_and_keeps_the_rest() -> None:
    def ranks(group: Group) -> None:
        params = [np.zeros(200), np.zeros((10, 10))]
        hook = rw.overlap.TopKHook(0.05)
        reducer = rw.overlap.GradientReducer(params, group, 1000, hook=hook)
        random = np.random.default_rng(group.rank)
        given, got = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
        for _ in range(6):
            gradients = [random.standard_normal(p.shape) for p in params]
            for place, found in enumerate(step(reducer, *gradients)):
                given[place] += gradients[place]
                got[place] += found
                assert 0 < np.count_nonzero(found) <= 2 * 10
                assert (np.stack(group.all_gather(found)) == found).all()
        for place, total in enumerate(given):  # what was given = what came out + what is kept
            kept = hook._kept[place]
            np.testing.assert_allclose(group.all_reduce(total - kept, "mean"), got[place], atol=1e-12)

    run_ranks(2, ranks)
    with pytest.raises(ValueError, match="fraction=0"):
        rw.overlap.TopKHook(0)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_hooks_reduce_with_the_op_of_the_reducer(op: Literal["sum", "mean"]) -> None:
    pytest.importorskip("ml_dtypes")

    def ranks(group: Group) -> None:
        params = [np.zeros(3, np.float32), np.zeros(3, np.float16)]  # hooks send the second one unchanged
        for hook in (rw.overlap.BF16Hook(), rw.overlap.TopKHook(1.0)):
            reducer = rw.overlap.GradientReducer(params, group, op=op, hook=hook)
            for found in step(reducer, *(p + 1 + 2 * group.rank for p in params)):
                assert found.tolist() == [4 if op == "sum" else 2] * 3

    run_ranks(2, ranks)


@pytest.mark.parametrize("hook", ["none", "bf16", "top-k"])
def test_the_digits_are_learnt(hook: str) -> None:
    pytest.importorskip("sklearn")
    if hook == "bf16":
        pytest.importorskip("ml_dtypes")
    module = digits()
    images, labels, test_images, test_labels = module.load_digits(0)

    def ranks(group: Group) -> float:
        hooks = {"none": None, "bf16": rw.overlap.BF16Hook(), "top-k": rw.overlap.TopKHook(0.05)}
        network, gradient = module.Network(32), module.Network(32)
        network.randomise(np.random.default_rng(0))
        reducer = rw.overlap.GradientReducer(gradient.layers(gradient.flat), group, hook=hooks[hook])
        batches = np.random.default_rng(1)
        for _ in range(8):
            for batch in np.array_split(batches.permutation(len(images)), 24):
                mine = np.array_split(batch, group.world_size)[group.rank]
                network.loss_and_gradient(images[mine], labels[mine], gradient.flat)
                means = step(reducer, *(layer / len(mine) for layer in gradient.layers(gradient.flat)))
                for weights, mean in zip(network.layers(network.flat), means, strict=True):
                    weights -= 0.5 * mean
        assert (np.stack(group.all_gather(network.flat)) == network.flat).all()
        return float((network.predict(test_images) == test_labels).mean())

    right = run_ranks(2, ranks)
    assert right[0] == right[1] > 0.9
