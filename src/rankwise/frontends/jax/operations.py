"""The collectives for functions that JAX compiles: their arguments are checked, and become a Call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rankwise import Group
from rankwise.arrays import dtypes
from rankwise.arrays.ops import Op, is_composed, resolve
from rankwise.contract.types import DType, ReduceOp
from rankwise.frontends.jax.calls import Call, What, bind, site
from rankwise.group.default_group import default_group


def all_reduce(x: Any, op: Op = "sum", group: Group | None = None) -> jax.Array:
    """The reduction of `x` over the ranks, on every rank.

    Args:
        x: an array of the same shape and dtype on all ranks.
        op: "sum", "mean", "max", "min", "prod", "band", "bor" or "bxor". Of a sum and a mean there are derivatives.
    """
    x = jnp.asarray(x)
    return bind(_made(What.ALL_REDUCE, group, op=_op(op, x)), x)[0]


def broadcast(x: Any, src: int = 0, group: Group | None = None) -> jax.Array:
    """The `x` of rank `src`, on every rank; it has the same shape and dtype on all of them."""
    x = jnp.asarray(x)
    _dtype(x)
    return bind(_made(What.BROADCAST, group, peer=_rank("src", src, group)), x)[0]


def all_gather(x: Any, group: Group | None = None) -> jax.Array:
    """Every rank's `x`, by rank, on every rank: shape (world_size, *x.shape)."""
    x = jnp.asarray(x)
    _dtype(x)
    return bind(_made(What.ALL_GATHER, group), x)[0]


def reduce_scatter(x: Any, op: Op = "sum", group: Group | None = None) -> jax.Array:
    """This rank's part of the reduction of `x`, whose first axis is divided by rank into equal parts."""
    x = jnp.asarray(x)
    _check_divisible(x, group)
    return bind(_made(What.REDUCE_SCATTER, group, op=_op(op, x)), x)[0]


def all_to_all(x: Any, group: Group | None = None) -> jax.Array:
    """Part i of `x`, along its first axis, goes to rank i; the result has the ranks' parts for this one, by rank."""
    x = jnp.asarray(x)
    _dtype(x)
    _check_divisible(x, group)
    return bind(_made(What.ALL_TO_ALL, group), x)[0]


def sendrecv(
    x: Any, dst: int | None = None, src: int | None = None, tag: int = 0, group: Group | None = None
) -> jax.Array:
    """Send `x` to rank `dst`, and return what rank `src` sends, an array of the same shape and dtype.

    Args:
        dst: None sends nothing.
        src: None receives nothing; the result is zeros.
        tag: of both messages.
    """
    x = jnp.asarray(x)
    _dtype(x)
    to, of = (-1 if rank is None else _rank(name, rank, group) for name, rank in (("dst", dst), ("src", src)))
    return bind(_made(What.SENDRECV, group, peer=to, source=of, tag=tag), x)[0]


def barrier(group: Group | None = None) -> None:
    """Return when all ranks have come. In a compiled function it stands between the calls before and behind it."""
    bind(_made(What.BARRIER, group))


def _made(what: What, group: Group | None, **more: Any) -> Call:
    return Call(what, _group(group), site=site(), **more)


def _group(group: Group | None) -> Group:
    return default_group() if group is None else group


def _dtype(x: jax.Array) -> DType:
    found = dtypes.from_numpy(x.dtype)
    if found is None:
        raise TypeError(f"x: arrays of {x.dtype} cannot be exchanged; expected numbers or bools")
    return found


def _op(op: Op, x: jax.Array) -> ReduceOp:
    if is_composed(op):
        raise ValueError(f"op={op!r}: expected the name of an operation, such as 'sum'; others need all_gather")
    return resolve(op, _dtype(x))


def _rank(name: str, rank: int, group: Group | None) -> int:
    n = _group(group).world_size
    if not 0 <= rank < n:
        raise ValueError(f"{name}={rank}: expected a rank of the group, 0 to {n - 1}")
    return rank


def _check_divisible(x: jax.Array, group: Group | None) -> None:
    n = _group(group).world_size
    if not x.shape or x.shape[0] % n:
        raise ValueError(f"x: shape {x.shape}, expected a first axis that {n} ranks can divide into equal parts")
