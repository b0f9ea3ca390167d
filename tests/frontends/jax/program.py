"""What rankwise.jax gives on the ranks of a job: `rankwise run -n 3 program.py`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rankwise as rw
from rankwise.jax import all_gather, all_reduce, all_to_all, barrier, broadcast, reduce_scatter, sendrecv

jax.config.update("jax_enable_x64", True)
group = rw.init()
n, me = group.world_size, group.rank
left, right = (me - 1) % n, (me + 1) % n


def mine(rank: int, length: int = 4) -> np.ndarray:
    return np.arange(float(length)) + 10 * rank


everyone = [mine(rank) for rank in range(n)]
x = jnp.array(mine(me))
long = [mine(rank, 2 * n) for rank in range(n)]
y = jnp.array(long[me])


def operations() -> None:
    """As they are, and compiled."""
    expected = {
        "all_reduce": (lambda: all_reduce(x), sum(everyone)),
        "mean": (lambda: all_reduce(x, "mean"), sum(everyone) / n),
        "max": (lambda: all_reduce(x, "max"), everyone[-1]),
        "broadcast": (lambda: broadcast(x, n - 1), everyone[-1]),
        "all_gather": (lambda: all_gather(x), np.array(everyone)),
        "all_gather of a number": (lambda: all_gather(me), np.arange(n)),
        "reduce_scatter": (lambda: reduce_scatter(y), sum(long)[2 * me : 2 * me + 2]),
        "all_to_all": (lambda: all_to_all(y), np.concatenate([each[2 * me : 2 * me + 2] for each in long])),
        "sendrecv": (lambda: sendrecv(x, right, left, tag=3), everyone[left]),
        "along a line": (
            lambda: sendrecv(x, right if me < n - 1 else None, left if me else None),
            everyone[left] if me else np.zeros(4),
        ),
    }
    for name, (call, want) in expected.items():
        for way in (call, jax.jit(call)):
            np.testing.assert_array_equal(way(), want, name)
    barrier()
    jax.jit(barrier)()


def dtypes() -> None:
    for kind in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.int8, jnp.uint16, jnp.int64, jnp.complex64):
        got = jax.jit(all_reduce)(jnp.ones(5, kind))
        assert got.dtype == kind
        assert (got == n).all()
    assert (all_reduce(jnp.array([True, me == 0]), "min") == jnp.array([True, n == 1])).all()


def order() -> None:
    """Equal calls are all made, also those whose results nobody uses, in the program's order."""

    @jax.jit
    def several(x: jax.Array) -> jax.Array:
        all_reduce(x)
        total = all_reduce(x) + all_reduce(x)
        for step in range(5):
            if me % 2:  # they do not depend on each other, so XLA could exchange them
                total += broadcast(x + step, 0) + all_gather(x).sum(0)
            else:
                first = broadcast(x + step, 0)
                total += all_gather(x).sum(0) + first
        return total

    with rw.trace.measure() as measured:
        got = several(x).block_until_ready()
    want = 2 * sum(everyone) + sum(everyone[0] + step + sum(everyone) for step in range(5))
    np.testing.assert_array_equal(got, want)
    assert measured.by_operation["all_reduce"].count == 3


def control_flow() -> None:
    loop = jax.jit(lambda x: lax.fori_loop(0, 10, lambda i, x: all_reduce(x, "mean"), x))
    np.testing.assert_allclose(loop(x), sum(everyone) / n)
    _, steps = jax.jit(lambda x: lax.scan(lambda c, _: (all_reduce(c, "mean"), c.sum()), x, None, length=3))(x)
    np.testing.assert_allclose(steps[1:], sum(everyone).sum() / n)
    branch = jax.jit(lambda x: lax.cond(x.sum() > -1, all_reduce, lambda x: x, x))
    np.testing.assert_array_equal(branch(x), sum(everyone))
    until = jax.jit(lambda x: lax.while_loop(lambda x: all_reduce(x, "max").max() < 1000, lambda x: 2 * x, x))
    assert all_reduce(until(x), "max").max() >= 1000


def gradients() -> None:
    """Of the sum of all ranks' results, as those of rw.autograd; and backwards twice."""
    weight = me + 1.0
    weights = n * (n + 1) / 2
    for name, function, want in (
        ("sum", lambda x: (all_reduce(x * x) * weight).sum(), 2 * x * weights),
        ("mean", lambda x: (all_reduce(x * x, "mean") * weight).sum(), 2 * x * weights / n),
        ("all_gather", lambda x: (all_gather(x * x) ** 2).sum(), n * 4 * x**3),
        ("of a number", lambda x: all_gather(x.sum()).sum(), n * np.ones(4)),
        ("broadcast", lambda x: (broadcast(x, n - 1) * weight).sum(), np.full(4, weights * (me == n - 1))),
        ("sendrecv", lambda x: (sendrecv(x, right, left) * weight).sum(), np.full(4, right + 1.0)),
    ):
        np.testing.assert_allclose(jax.grad(function)(x), want, err_msg=name)
        np.testing.assert_allclose(jax.jit(jax.grad(function))(x), want, err_msg=name)
    scattered = jax.grad(lambda y: (reduce_scatter(y) * weight).sum())(y)
    np.testing.assert_allclose(scattered, np.repeat(np.arange(n) + 1.0, 2))
    exchanged = jax.grad(lambda y: (all_to_all(y) * weight).sum())(y)
    np.testing.assert_allclose(exchanged, np.repeat(np.arange(n) + 1.0, 2))
    cube = jax.grad(lambda x: jax.grad(lambda x: all_reduce(x**3).sum())(x).sum())(x)
    np.testing.assert_allclose(cube, n * 6 * x)
    _, tangent = jax.jvp(all_reduce, (x,), (jnp.ones(4) * me,))
    np.testing.assert_allclose(tangent, sum(range(n)))
    again = jax.checkpoint(lambda x: all_reduce(jnp.sin(x)))
    np.testing.assert_allclose(jax.grad(lambda x: again(x).sum())(x), n * np.cos(x))


def rows() -> None:
    many = jnp.array([[mine(rank, 2 * n) + 100 * row for row in range(3)] for rank in range(n)])
    own, total = many[me], np.asarray(many).sum(0)
    np.testing.assert_array_equal(jax.vmap(all_reduce)(own), total)
    np.testing.assert_array_equal(jax.vmap(all_reduce, 1, 1)(own), total)
    np.testing.assert_array_equal(jax.vmap(reduce_scatter)(own), total[:, 2 * me : 2 * me + 2])
    np.testing.assert_array_equal(jax.vmap(all_gather)(own), np.moveaxis(np.asarray(many), 0, 1))
    np.testing.assert_array_equal(jax.vmap(all_to_all)(own), [all_to_all(row) for row in own])
    np.testing.assert_array_equal(jax.vmap(lambda x: sendrecv(x, right, left))(own), many[left])


def refusals() -> None:
    for call, words in (
        (lambda: all_reduce(x, "minloc"), "op='minloc': expected the name"),
        (lambda: broadcast(x, n), f"src={n}: expected a rank"),
        (lambda: reduce_scatter(jnp.ones(2 * n + 1) if n > 1 else jnp.ones(())), "expected a first axis"),
        (lambda: jax.jit(lambda x: all_reduce(x, "sun"))(x), "op='sun'"),
        (lambda: sendrecv(x, me, me, tag=2**32), "tag=4294967296: expected 0 to"),
        (lambda: broadcast(x, 0.5), "src=0.5: expected an int"),
        (lambda: all_reduce(x, group=3), "group: expected a Group, got 3"),
        (lambda: broadcast(jax.random.key(0)), "x: arrays of key<fry> cannot be exchanged"),
    ):
        with pytest.raises((ValueError, TypeError), match=re.escape(words)):
            call()
    with group.split(0) as part:
        assert part is not None
        np.testing.assert_array_equal(all_reduce(x, group=part), sum(everyone))


for check in (operations, dtypes, order, control_flow, gradients, rows, refusals):
    check()
print("as expected")
