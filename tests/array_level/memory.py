"""Arrays of every memory layout, and objects that hold numbers but are not arrays."""

from __future__ import annotations

import array

import numpy as np

from rankwise.group.group import Group
from rankwise.testing.oracle import Array


def any_layout_in_place(group: Group) -> None:
    """Views, other byte orders and odd addresses are reduced in place; the bytes in between stay unchanged."""
    n = group.world_size
    for x, around in _layouts():
        x[...] = np.arange(x.size).reshape(x.shape) + group.rank
        assert group.all_reduce(x) is x
        want = np.arange(x.size).reshape(x.shape) * n + sum(range(n))
        np.testing.assert_array_equal(x, want)
        x[...] = 0
        assert not any(around.tobytes()), "memory next to the array was written to"


def any_layout_to_read(group: Group) -> None:
    n, me = group.world_size, group.rank
    for x, _ in _layouts():
        x[...] = np.arange(x.size).reshape(x.shape) + me
        plain = np.arange(x.size).reshape(x.shape)
        np.testing.assert_array_equal(group.all_gather(x), np.stack([plain + rank for rank in range(n)]))
        got = group.reduce_scatter(x, "max")
        np.testing.assert_array_equal(got, np.array_split(plain + n - 1, n)[me])
        work = group.isend(x, (me + 1) % n)
        np.testing.assert_array_equal(group.recv(x.shape, (me - 1) % n, dtype=x.dtype), plain + (me - 1) % n)
        work.wait()


def any_layout_as_out(group: Group) -> None:
    n = group.world_size
    x = np.full((4, 6), group.rank, np.int32)
    want = np.stack([np.full((4, 6), rank) for rank in range(n)])
    for out in (np.empty((n, 4, 6), np.int32, order="F"), np.empty((n, 4, 12), np.int32)[..., ::-2]):
        assert group.all_gather(x, out=out) is out
        np.testing.assert_array_equal(out, want)


def buffers(group: Group) -> None:
    """Operations work in place on objects with the buffer protocol."""
    n = group.world_size
    numbers = array.array("d", [1.5, 2.5, 3.5])
    assert group.all_reduce(numbers) is numbers
    assert numbers.tolist() == [1.5 * n, 2.5 * n, 3.5 * n]
    raw = bytearray([group.rank + 1] * 5)
    assert group.broadcast(raw, n - 1) is raw
    assert raw == bytes([n] * 5)
    assert group.all_gather(memoryview(raw)).tolist() == [[n] * 5] * n
    assert group.all_gather(bytes([group.rank])).tolist() == [[rank] for rank in range(n)]


def _layouts() -> list[tuple[Array, Array]]:
    """Writable arrays, and the zeroed memory that contains each."""
    wide, cube = np.zeros((8, 12)), np.zeros((6, 4), np.int64)
    record, odd = np.zeros(24, "u1,f8"), np.zeros(24 * 4 + 1, np.uint8)
    swapped = np.zeros((4, 6), np.dtype(np.int32).newbyteorder())
    fortran = np.zeros((4, 6), np.float32, order="F")
    return [
        (wide[::2, ::-2], wide),
        (wide[1:5, 3:9], wide),
        (cube.T, cube),
        (cube[::-1], cube),
        (record["f1"], record),
        (odd[1:].view(np.float32), odd),
        (swapped, swapped),
        (fortran, fortran),
    ]
