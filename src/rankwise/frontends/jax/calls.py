"""A group's operations as one primitive of JAX: what it gives, how it is lowered to XLA, differentiated and mapped.

The calls are effects that JAX keeps in the program's order, so that equal calls are not merged, unused ones are made,
and all ranks make theirs in one order.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from rankwise import Group
from rankwise._native import jax_call
from rankwise.arrays import dtypes
from rankwise.arrays.ops import Op, is_composed, resolve
from rankwise.contract.operations import check_rank
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.base import check_tag, integer
from rankwise.group.default_group import default_group, thread_is_rank
from rankwise.group.group import RENEWALS


class What(IntEnum):
    """The operations, by their numbers in native/bindings/jax.cpp."""

    BARRIER = 0
    BROADCAST = 1
    ALL_REDUCE = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    ALL_TO_ALL = 5
    SENDRECV = 6
    NOTHING = 7
    """For measurements: the floor, which all the others stand on."""


class Call(NamedTuple):
    """One call of a program; the numbers that its operation does not use are -1."""

    what: What
    group: Group
    op: ReduceOp = ReduceOp.SUM
    peer: int = -1
    """The root, or the rank to which this one sends."""
    source: int = -1
    tag: int = 0
    site: tuple[str, int, str] = ("", 0, "")
    """File, line and function of the program's call."""


def _effect_of_print(*, ordered: bool) -> Any:
    """An effect that JAX allows in loops, branches, derivatives and checkpoints; no public function makes a new one."""
    (effect,) = jax.make_jaxpr(lambda: jax.debug.print("", ordered=ordered))().effects
    return effect


ORDERED = _effect_of_print(ordered=True)
EFFECTS = {ORDERED, _effect_of_print(ordered=False)}
"""The second is not ordered: without such a one, JAX calls the result of lower().compile() without its token."""
_TOKEN = jax.make_jaxpr(jax.lax.create_token)().out_avals[0]

_TARGET = "rankwise_call"
"""The name of `jax_call` in XLA."""

_call = Primitive("rankwise")
_call.multiple_results = True
_call.def_impl(partial(xla.apply_primitive, _call))


def bind(call: Call, *operands: Any) -> list[Any]:
    """Make the call, or put it in the program that is being traced."""
    _prepare()
    results: list[Any] = _call.bind(*operands, call=call)
    return results


@lru_cache(1)
def _prepare() -> None:
    jax.ffi.register_ffi_target(_TARGET, jax_call, platform="cpu")
    RENEWALS.append(jax.clear_caches)  # compiled functions have the numbers of the default group
    atexit.register(jax.effects_barrier)  # before the groups are closed


def site() -> tuple[str, int, str]:
    """Where the program is: the innermost frame that is neither JAX's nor rankwise's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_passed(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _is_passed(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "rankwise", "contextlib", "functools")


@_call.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _result(*operands: Any, call: Call) -> tuple[list[Any], set[Any]]:
    if not operands:
        return [], EFFECTS
    (x,), n = operands, call.group.world_size
    shape = {
        What.ALL_GATHER: (n, *x.shape),
        What.REDUCE_SCATTER: (x.shape[0] // n, *x.shape[1:]) if x.shape else (),
    }.get(call.what, x.shape)
    return [jax.core.ShapedArray(shape, x.dtype)], EFFECTS


def _lowering(ctx: Any, *operands: Any, call: Call) -> Sequence[Any]:
    ctx.module_context.add_keepalive(call.group)  # whose number the compiled function has
    token = ctx.tokens_in.get(ORDERED)
    inner = ctx.replace(avals_in=[*ctx.avals_in, _TOKEN], avals_out=[*ctx.avals_out, _TOKEN])
    in_place = call.what in (What.BROADCAST, What.ALL_REDUCE, What.NOTHING)
    rule = jax.ffi.ffi_lowering(
        _TARGET,
        has_side_effect=True,
        operand_output_aliases={0: 0} if in_place else None,
        operand_layouts=_layouts(inner.avals_in),
        result_layouts=_layouts(inner.avals_out),
    )
    file, line, function = call.site
    dtype = count = size = 0
    if operands:
        x = ctx.avals_in[0]
        parts = call.group.world_size if call.what in (What.REDUCE_SCATTER, What.ALL_TO_ALL) else 1
        dtype, count, size = _dtype(x), x.size // parts, x.size * x.dtype.itemsize
    numbers = np.array(
        [call.what, call.group.handle, call.op, dtype, count, size, call.peer, call.source, call.tag, line], np.int64
    )
    *results, token = rule(inner, *operands, token, file=file, function=function, numbers=numbers)
    ctx.set_tokens_out(mlir.TokenSet({ORDERED: token}))
    return list(results)


def _layouts(avals: Sequence[Any]) -> list[Sequence[int]]:
    return [() if aval is _TOKEN else tuple(reversed(range(aval.ndim))) for aval in avals]


mlir.register_lowering(_call, _lowering, platform="cpu")


# ---- derivatives: all these operations are linear, and each has another as its transpose ----


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[Any, Any]:
    results = _call.bind(*primals, call=call)
    if not tangents or isinstance(tangents[0], ad.Zero):
        return results, [ad.Zero.from_primal_value(result) for result in results]
    if call.what in (What.ALL_REDUCE, What.REDUCE_SCATTER) and call.op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise NotImplementedError(f"op={call.op.name.lower()}: only a sum and a mean have derivatives here")
    return results, _call.bind(*tangents, call=call)


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Call) -> list[Any]:
    """Derivatives refer to the sum of what the ranks compute, as those of rw.autograd do."""
    (given,) = cotangents
    if isinstance(given, ad.Zero):
        given = jnp.zeros(given.aval.shape, given.aval.dtype)  # the other ranks make their call
    return [_adjoint(call, given)]


def _adjoint(call: Call, given: Any) -> Any:
    n, rank = call.group.world_size, call.group.rank
    total = Call(What.ALL_REDUCE, call.group, site=call.site)
    match call.what:
        case What.BROADCAST:
            (result,) = bind(total, given)
            return result if rank == call.peer else jnp.zeros_like(result)
        case What.ALL_GATHER:
            flat = given if given.ndim == 1 else given.reshape(n * given.shape[1], *given.shape[2:])
            (result,) = bind(call._replace(what=What.REDUCE_SCATTER), flat)
            return result.reshape(given.shape[1:])
        case What.REDUCE_SCATTER:
            (result,) = bind(call._replace(what=What.ALL_GATHER), given / n if call.op is ReduceOp.MEAN else given)
            return result.reshape(-1, *given.shape[1:])
        case What.SENDRECV:
            return bind(call._replace(peer=call.source, source=call.peer), given)[0]
        case _:
            return bind(call, given)[0]


ad.primitive_jvps[_call] = _jvp
ad.primitive_transposes[_call] = _transpose


# ---- vmap: the rows go together, in one call ----


def _mapped(operands: Sequence[Any], dims: Sequence[int], *, call: Call) -> tuple[list[Any], list[int]]:
    (x,), (dim,) = operands, dims
    if call.what in (What.REDUCE_SCATTER, What.ALL_TO_ALL):  # which divide the first axis
        x, dim = jnp.moveaxis(x, dim, 1), 1
    elif call.what is What.ALL_GATHER:
        return _call.bind(x, call=call), [dim + 1]
    return _call.bind(x, call=call), [dim]


batching.primitive_batchers[_call] = _mapped


# ---- the collectives for functions that JAX compiles: their arguments are checked, and become a Call ----


def all_reduce(x: Any, op: Op = "sum", group: Group | None = None) -> jax.Array:
    """The reduction of `x` over the ranks, on every rank.

    Args:
        x: an array of the same shape and dtype on all ranks.
        op: "sum", "mean", "max", "min", "prod", "band", "bor" or "bxor". Of a sum and a mean there are derivatives.
    """
    return _exchanged(What.ALL_REDUCE, x, group, op=op)


def broadcast(x: Any, src: int = 0, group: Group | None = None) -> jax.Array:
    """The `x` of rank `src`, on every rank; it has the same shape and dtype on all of them."""
    return _exchanged(What.BROADCAST, x, group, peer=_rank(src, group, "src"))


def all_gather(x: Any, group: Group | None = None) -> jax.Array:
    """Every rank's `x`, by rank, on every rank: shape (world_size, *x.shape)."""
    return _exchanged(What.ALL_GATHER, x, group)


def reduce_scatter(x: Any, op: Op = "sum", group: Group | None = None) -> jax.Array:
    """This rank's part of the reduction of `x`, whose first axis is divided by rank into equal parts."""
    return _exchanged(What.REDUCE_SCATTER, x, group, divides=True, op=op)


def all_to_all(x: Any, group: Group | None = None) -> jax.Array:
    """Part i of `x`, along its first axis, goes to rank i; the result has the ranks' parts for this one, by rank."""
    return _exchanged(What.ALL_TO_ALL, x, group, divides=True)


def sendrecv(
    x: Any, dst: int | None = None, src: int | None = None, tag: int = 0, group: Group | None = None
) -> jax.Array:
    """Send `x` to rank `dst`, and return what rank `src` sends, an array of the same shape and dtype.

    Args:
        dst: None sends nothing.
        src: None receives nothing; the result is zeros.
        tag: of both messages.
    """
    to, of = (-1 if rank is None else _rank(rank, group, name) for name, rank in (("dst", dst), ("src", src)))
    return _exchanged(What.SENDRECV, x, group, peer=to, source=of, tag=check_tag(tag))


def barrier(group: Group | None = None) -> None:
    """Return when all ranks have come. In a compiled function it stands between the calls before and behind it."""
    bind(Call(What.BARRIER, _group(group), site=site()))


def _exchanged(
    what: What, x: Any, group: Group | None, *, divides: bool = False, op: Op | None = None, **more: Any
) -> jax.Array:
    """What the operation makes of an array. divides: whether the ranks get parts of it."""
    x, group = jnp.asarray(x), _group(group)
    dtype, n = _dtype(x), group.world_size
    if divides and (not x.shape or x.shape[0] % n):
        raise ValueError(f"x: shape {x.shape}, expected a first axis that {n} ranks can divide into equal parts")
    if op is not None:
        more["op"] = _op(op, dtype)
    return bind(Call(what, group, site=site(), **more), x)[0]


def _group(group: Group | None) -> Group:
    if group is None and thread_is_rank():
        raise ValueError("group=None: ranks that are threads share what JAX compiles; expected each one's own group")
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"group: expected a Group, got {group!r}")
    return group or default_group()


def _rank(rank: int, group: Group | None, name: str) -> int:
    return check_rank(integer(rank, name), _group(group).world_size, name)


def _dtype(x: jax.Array) -> DType:
    dtype = dtypes.from_numpy(x.dtype) if isinstance(x.dtype, np.dtype) else None
    if dtype is None:
        raise TypeError(f"x: arrays of {x.dtype} cannot be exchanged; expected numbers or bools")
    return dtype


def _op(op: Op, dtype: DType) -> ReduceOp:
    if is_composed(op):
        raise ValueError(f"op={op!r}: expected the name of an operation, such as 'sum'; others need all_gather")
    return resolve(op, dtype)
