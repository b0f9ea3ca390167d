"""Bad arguments at the array level: each error names the argument, what was given and what was
expected, is raised before anything is sent, and leaves the group usable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankwise.group.group import Group
from rankwise.testing.checks import refuses


def unknown_or_meaningless_op(group: Group) -> None:
    x = np.ones(3)
    refuses(ValueError, group.all_reduce, x, "sun", words=("op", "'sun'", "sum"))
    refuses(ValueError, group.reduce, x, op="", words=("op", "''", "sum"))
    refuses(ValueError, group.reduce_scatter, x, "add", words=("op", "'add'", "sum"))
    refuses(TypeError, group.all_reduce, x, 0, words=("op", "0", "int"))
    refuses(TypeError, group.all_reduce, x, None, words=("op", "None"))
    refuses(TypeError, group.all_reduce, np.ones(3, int), "mean", words=("op", "mean", "int64"))
    refuses(TypeError, group.all_reduce, np.ones(3, bool), "avg", words=("op", "mean", "bool"))
    refuses(TypeError, group.all_reduce, x, "bxor", words=("op", "bxor", "float64"))
    refuses(TypeError, group.all_reduce, x.astype(complex), "max", words=("op", "max", "complex128"))
    assert (x == 1).all()


def ranks_outside_the_group(group: Group) -> None:
    x, n = np.ones(3), group.world_size
    expected = f"0 to {n - 1}"
    for rank in (-1, n, n + 100):
        given = str(rank)
        refuses(ValueError, group.broadcast, x, src=rank, words=("src", given, expected))
        refuses(ValueError, group.scatter, x, src=rank, words=("src", given, expected))
        refuses(ValueError, group.reduce, x, dst=rank, words=("dst", given, expected))
        refuses(ValueError, group.gather, x, dst=rank, words=("dst", given, expected))
        refuses(ValueError, group.send, x, rank, words=("dst", given, expected))
        refuses(ValueError, group.isend, x, rank, words=("dst", given, expected))
        refuses(ValueError, group.recv, x, rank, words=("src", given, expected))
        refuses(ValueError, group.irecv, (3,), rank, words=("src", given, expected))
        refuses(ValueError, group.subgroup, [rank], words=("ranks", given, expected))
    refuses(TypeError, group.broadcast, x, src="0", words=("src", "'0'", "str"))
    refuses(TypeError, group.gather, x, dst=0.0, words=("dst", "0.0", "float"))
    refuses(TypeError, group.reduce, x, dst=None, words=("dst", "None"))


def objects_that_are_not_arrays(group: Group) -> None:
    for thing, kind in (("text", "str"), (None, "NoneType"), ([1, 2], "list"), (object(), "object"), ({}, "dict")):
        for call in _one_array_calls(group):
            refuses(TypeError, call, thing, words=("x", kind))


def unsupported_dtypes(group: Group) -> None:
    for x in (np.array([None, 1]), np.array(["a"]), np.array(["2020-01-01"], "M8[D]")):
        for call in _one_array_calls(group):
            refuses(TypeError, call, x, words=("x", str(x.dtype)))
    for call in _one_array_calls(group):
        refuses(TypeError, call, np.zeros(2, "i4,f4"), words=("x", "structured", "x['f0']"))
    refuses(TypeError, group.all_reduce, np.zeros(2, np.longdouble), words=("x", str(np.dtype(np.longdouble))))
    refuses(TypeError, group.recv, (3,), 0, dtype="float33", words=("dtype", "float33"))
    refuses(TypeError, group.recv, (3,), 0, dtype=object, words=("dtype", "object"))


def read_only_arrays(group: Group) -> None:
    """Outputs must be writable; inputs need not be."""
    x = np.ones((4, 3))
    x.flags.writeable = False
    n, out = group.world_size, np.empty((group.world_size, 4, 3))
    refuses(ValueError, group.all_reduce, x, words=("x", "read-only"))
    if n > 1:
        refuses(ValueError, group.broadcast, x, (group.rank + 1) % n, words=("x", "read-only"))
    refuses(ValueError, group.recv, x, 0, words=("x", "read-only"))
    frozen = out.copy()
    frozen.flags.writeable = False
    refuses(ValueError, group.all_gather, x, out=frozen, words=("out", "read-only"))
    for readable in (x, x[:, ::2], x.T):
        assert (group.all_gather(readable) == 1).all()
        got = group.broadcast(readable if group.rank == 0 else np.zeros(readable.shape), 0)
        assert (got == 1).all()
        into = group.reduce(readable.copy() if group.rank == 0 else readable, 0)
        assert into is None or (into == n).all()


def wrong_out(group: Group) -> None:
    """gather takes out= only on dst, and scatter knows the shape only on src."""
    n = group.world_size
    x = np.ones((2 * n, 3), np.float32)
    wanted: dict[str, tuple[tuple[int, ...], Callable[..., object]]] = {
        "all_gather": ((n, 2 * n, 3), group.all_gather),
        "reduce_scatter": ((2, 3), group.reduce_scatter),
        "all_to_all": ((2 * n, 3), group.all_to_all),
    }
    for shape, call in wanted.values():
        other = (*shape[:-1], 4)
        refuses(ValueError, call, x, out=np.empty(other, x.dtype), words=("out", str(shape), str(other)))
        refuses(ValueError, call, x, out=np.empty(shape), words=("out", "float32", "float64"))
        refuses(TypeError, call, x, out="here", words=("out", "str"))
        refuses(TypeError, call, x, out=3.0, words=("out", "float"))
    refuses(ValueError, group.all_to_all, x, out=x, words=("out", "overlaps"))
    whole = np.ones((n + 1, 4))
    refuses(ValueError, group.all_gather, whole[0], out=whole[:n], words=("out", "overlaps"))


def nothing_to_split(group: Group) -> None:
    for call in (group.reduce_scatter, group.all_to_all, group.all_gather_v):
        refuses(ValueError, call, np.array(1.0), words=("x", "axis 0"))
        refuses(ValueError, call, 1.0, words=("x", "axis 0"))


def bad_tags_shapes_and_timeouts(group: Group) -> None:
    x = np.ones(2)
    refuses(ValueError, group.send, x, 0, -1, words=("tag", "-1"))
    refuses(ValueError, group.recv, x, 0, 2**31, words=("tag", str(2**31)))
    refuses(TypeError, group.isend, x, 0, "a", words=("tag", "'a'", "str"))
    refuses(ValueError, group.recv, (2, -1), 0, words=("x", "-1"))
    refuses(ValueError, group.recv, (2, "b"), 0, words=("x", "b"))
    refuses(TypeError, group.recv, None, 0, words=("x", "NoneType"))
    refuses(TypeError, group.recv, "text", 0, words=("x", "str"))
    for seconds in (0, -1.5, float("nan")):
        refuses(ValueError, setattr, group, "timeout", seconds, words=("timeout", str(seconds)))
    refuses(TypeError, setattr, group, "timeout", "1", words=("timeout", "'1'", "str"))


def bad_groups(group: Group) -> None:
    refuses(TypeError, group.split, "a", words=("color", "'a'", "str"))
    refuses(TypeError, group.split, 0, 0.5, words=("key", "0.5", "float"))
    refuses(ValueError, group.subgroup, [], words=("ranks", "[]"))
    refuses(ValueError, group.subgroup, [0, 0], words=("ranks", "[0, 0]"))
    refuses(TypeError, group.subgroup, ["0"], words=("ranks", "'0'", "str"))


def one_rank_errs_and_continues(group: Group) -> None:
    """The other ranks wait for that rank's next call and do not notice the error."""
    x = np.full(3, group.rank)
    if group.rank == group.world_size - 1:
        refuses(ValueError, group.all_reduce, x, "sun", words=("op",))
        refuses(ValueError, group.broadcast, x, group.world_size, words=("src",))
    assert (group.all_reduce(x) == sum(range(group.world_size))).all()


def _one_array_calls(group: Group) -> list[Callable[..., object]]:
    return [
        group.all_reduce,
        group.broadcast,
        group.reduce,
        group.all_gather,
        group.all_gather_v,
        group.gather,
        group.reduce_scatter,
        group.all_to_all,
        lambda x: group.send(x, 0),
    ]
