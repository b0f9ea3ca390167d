"""What each rank must get from each step of a program, computed with NumPy from the program alone.

The numbers of what is reduced are such that no addition or product is rounded before the end, so that their order does
not matter; what is only moved may be anything.
"""

from __future__ import annotations

import random
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.random  # now: an interrupt in the middle of an import may leave Python's lock on the module held

from random_programs.program import Collective

try:
    import ml_dtypes

    NARROW_TYPES = {
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
        "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    }
except ImportError:  # it is not there in every environment of the tests
    NARROW_TYPES = {}

Array: TypeAlias = np.ndarray[Any, Any]

INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
COMPLEX = ("complex64", "complex128")
NARROW = ("float16", *NARROW_TYPES)
DTYPES = ("float64", "float32", *NARROW, *INTEGERS, *COMPLEX, "bool")
PERIOD = 4099  # contents repeat after a prime number of elements, so that a misplaced block does not look right

SPLIT = ("scatter", "reduce_scatter", "all_to_all")  # axis 0 as by numpy.array_split
VECTOR = ("all_gather_v", "gather_v", "scatter_v", "reduce_scatter_v", "all_to_all_v")
REDUCED = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v", "scan", "exscan")
FROM_ROOT = ("broadcast", "scatter", "scatter_v", "broadcast_object", "scatter_object")
TO_ROOT = ("reduce", "gather", "gather_v", "gather_object")
IN_PLACE = ("all_reduce", "reduce", "broadcast")


def dtype_of(name: str) -> np.dtype[Any]:
    return NARROW_TYPES.get(name) or np.dtype(name)


def ops_of(name: str, dtype: str) -> list[str]:
    """The ops with which the operation `name` reduces this dtype."""
    ops = ["sum", "product"]
    ops += [] if dtype in COMPLEX else ["min", "max"]
    ops += ["band", "bor", "bxor"] if dtype in INTEGERS or dtype == "bool" else []
    ops += ["mean"] if dtype not in INTEGERS and dtype != "bool" and name not in ("scan", "exscan") else []
    if dtype in ("float64", "int64", "int32"):
        ops += ["function"] + ["minloc", "maxloc"] * (name in ("all_reduce", "reduce"))
    return ops


def function(a: Array, b: Array) -> Array:
    """The op "function". The order of the ranks matters, and so does that of the calls."""
    with np.errstate(over="ignore"):
        return 2 * a + b


# ---- what the ranks pass ----


def counts(seed: int, step: Collective, size: int, member: int = 0) -> list[int]:
    """How many rows a vector collective has for each member; all_to_all_v has other counts on each `member`."""
    rng = np.random.default_rng((seed, step.number, 7, member if step.name == "all_to_all_v" else 0))
    found = rng.integers(0, 2 * step.shape[0] + 1, size)
    found[rng.random(size) < 0.2] = 0
    return [int(count) for count in found]


def given(seed: int, step: Collective, size: int, member: int) -> Array:
    """The array that a member passes; read-only."""
    shape = step.shape
    if step.name in ("all_gather_v", "gather_v"):
        shape = (counts(seed, step, size)[member], *shape[1:])
    elif step.name in VECTOR:
        shape = (sum(counts(seed, step, size, member)), *shape[1:])
    return contents(seed, step.number, member, shape, step.dtype, step.op, size)


@lru_cache(32)  # ranks that are threads share them
def contents(
    seed: int, number: int, member: int, shape: tuple[int, ...], dtype: str, op: str = "", size: int = 1
) -> Array:
    rng, count, kind = np.random.default_rng((seed, number, member)), min(int(np.prod(shape)), PERIOD), dtype_of(dtype)
    values: Array
    if dtype == "bool":
        values = rng.integers(0, 2, count).astype(bool)
    elif not op or (dtype in INTEGERS and op not in ("minloc", "maxloc")):
        values = np.frombuffer(rng.bytes(count * kind.itemsize), kind)
    else:
        if op == "product":
            values = rng.choice([1.0, 1.0, 1.0, -1.0, 2.0, 0.5], count)
        elif op == "mean":
            values = rng.integers(-2, 3, count).astype(float) * size
        else:
            most = 2 if kind.itemsize == 1 else 8
            values = rng.integers(-most, most + 1, count).astype(float)
        values = values * rng.choice([1, 1j], count) if dtype in COMPLEX else values
        values = values.astype(kind)
    values = np.resize(values, shape).astype(kind, copy=False)
    values.flags.writeable = False
    return values


def thing(seed: int, number: int, member: int, length: int) -> Any:
    """An object of plain data that takes about `length` bytes."""
    rng = random.Random(f"{seed} {number} {member}")
    parts: list[Any] = [
        None, rng.random(), rng.getrandbits(80), ("a", member), {"key": [1, 2, {3}]}, "ü" * (length // 4),
        bytes(length // 2), np.arange(length // 8), np.full((2, length // 32), member, np.float32), True, 1j,
    ]  # fmt: skip
    return (seed, number, member, rng.sample(parts, rng.randint(0, 4)))


# ---- what they get ----


def received(seed: int, step: Collective, size: int, me: int) -> Any:
    """What member `me` of `size` gets: an array, objects, the pair of minloc or all_to_all_v, or None."""
    root, name = step.root % size, step.name
    if name == "barrier" or (name in TO_ROOT and me != root):
        return None
    if name.endswith("_object"):
        return _objects(seed, step, size, me, root)
    if name in FROM_ROOT:
        return _rows(seed, step, size, given(seed, step, size, root), root)[me]
    if name == "exscan" and me == 0:
        return neutral(step)
    sources = {"scan": me + 1, "exscan": me}.get(name, size)
    xs = [given(seed, step, size, member) for member in range(sources)]
    if name in REDUCED:
        total = reduced(xs, step.dtype, step.op)
        return _rows(seed, step, size, total, 0)[me] if "scatter" in name else total
    if name in ("all_to_all", "all_to_all_v"):
        blocks = [_rows(seed, step, size, x, member)[me] for member, x in enumerate(xs)]
        whole = np.concatenate(blocks)
        return (whole, [len(block) for block in blocks]) if name == "all_to_all_v" else whole
    return np.concatenate(xs) if name in VECTOR else np.stack(xs)


def _objects(seed: int, step: Collective, size: int, me: int, root: int) -> Any:
    length = step.shape[0]
    if step.name == "broadcast_object":
        return thing(seed, step.number, root, length)
    if step.name == "scatter_object":
        return thing(seed, step.number, me, length)
    return [thing(seed, step.number, member, length) for member in range(size)]


def _rows(seed: int, step: Collective, size: int, whole: Array, member: int) -> list[Array]:
    """The array of a member, by the member that gets each part of it."""
    if step.name in VECTOR:
        return np.split(whole, np.cumsum(counts(seed, step, size, member))[:-1])
    return np.array_split(whole, size) if step.name in SPLIT else [whole] * size


def reduced(xs: list[Array], dtype: str, op: str) -> Any:
    """Floats of two bytes or less are added up in float32 and rounded once; integers wrap."""
    if op == "function":
        return np.asarray(reduce(function, xs))
    if op in ("minloc", "maxloc"):
        stacked = np.stack(xs)
        where = np.asarray((np.argmin if op == "minloc" else np.argmax)(stacked, axis=0), np.int64)
        return np.asarray(np.take_along_axis(stacked, where[None], axis=0)[0]), where
    wide = np.stack([x.astype(np.float32) if dtype in NARROW else x for x in xs])
    if dtype == "bool":
        if op == "bxor":
            return np.asarray(np.logical_xor.reduce(wide))
        return np.asarray(wide.any(axis=0) if op in ("sum", "max", "bor") else wide.all(axis=0))
    ufuncs = {
        "sum": np.add, "mean": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    with np.errstate(over="ignore"):
        total = np.asarray(ufuncs[op].reduce(wide, axis=0, dtype=wide.dtype))
        return np.asarray(total / len(xs) if op == "mean" else total).astype(dtype_of(dtype))


def neutral(step: Collective) -> Array | None:
    """What exscan gives to member 0."""
    kind = dtype_of(step.dtype)
    if step.op == "function":
        return None
    if step.op in ("min", "max"):
        highest: Any
        if step.dtype in INTEGERS:
            lowest, highest = np.iinfo(kind).min, np.iinfo(kind).max
        elif step.dtype == "bool":
            lowest, highest = False, True
        else:
            highest = 448.0 if step.dtype == "float8_e4m3fn" else np.inf  # which has no infinity
            lowest = -highest
        return np.full(step.shape, highest if step.op == "min" else lowest, kind)
    if step.op == "band":
        return np.full(step.shape, True) if step.dtype == "bool" else np.asarray(~np.zeros(step.shape, kind))
    return np.full(step.shape, step.op == "product", kind)


# ---- the comparison ----


def differs(got: Any, want: Any, exact: bool) -> str:
    """Say how they differ, or nothing. exact: every bit must be equal, as in what was only moved; else 0 equals -0."""
    if isinstance(want, (tuple, list)):
        if type(got) is not type(want) or len(got) != len(want):
            return f"got {shown(got)}, expected {shown(want)}"
        return next(filter(None, (differs(a, b, exact) for a, b in zip(got, want, strict=True))), "")
    if not isinstance(want, np.ndarray):
        return "" if type(got) is type(want) and got == want else f"got {shown(got)}, expected {shown(want)}"
    if not isinstance(got, np.ndarray) or (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"got {shown(got)}, expected {shown(want)}"
    if not got.size:
        return ""
    if exact:
        left, right = (np.frombuffer(a.tobytes(), np.uint8).reshape(a.size, -1) for a in (got, want))
        wrong = (left != right).any(axis=1)
    else:
        wrong = (got != want).reshape(-1)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    return (
        f"{wrong.sum()} of {wrong.size} elements differ, the first at {at}: "
        f"got {got.reshape(-1)[at]!r}, expected {want.reshape(-1)[at]!r}"
    )


def shown(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.200}"
