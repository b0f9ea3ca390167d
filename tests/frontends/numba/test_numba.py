"""Every operation of rankwise.numba gives in compiled code what the group's method gives, and raises what it raises."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.testing import run_ranks

numba = pytest.importorskip("numba", reason="there is no numba; pip install numba")

from rankwise import numba as rn  # noqa: E402

RANKS = 3


@numba.njit(nogil=True)
def collectives(handle: int, x: Any, gathered: Any, part: Any, exchanged: Any) -> Any:
    """What each collective stores, in order."""
    n, me = rn.world_size(handle), rn.rank(handle)
    results = [x.copy() for _ in range(5)]
    rn.all_reduce(handle, results[0])
    rn.all_reduce(handle, results[1], "max")
    rn.all_reduce(handle, results[2], rw.ReduceOp.PROD)
    rn.broadcast(handle, results[3], n - 1)
    rn.reduce(handle, results[4], 1, "min")
    rn.barrier(handle)
    rn.all_gather(handle, x, gathered)
    results.append(gathered.copy())
    gathered[:] = 0
    rn.gather(handle, x, gathered, 1)
    results.append(gathered.copy())
    rn.broadcast(handle, gathered, 1)
    rn.scatter(handle, gathered, part, 0)
    results.append(part.copy())
    rn.reduce_scatter(handle, gathered, part, "sum")
    results.append(part.copy())
    rn.all_to_all(handle, gathered + me, exchanged)
    results.append(exchanged.copy())
    return results


@numba.njit(nogil=True)
def vectors(handle: int, x: Any) -> Any:
    n, me = rn.world_size(handle), rn.rank(handle)
    counts = np.arange(n)  # rank i has i elements
    everything = np.zeros(counts.sum(), x.dtype)
    rn.all_gather_v(handle, x, everything, counts)
    results = [everything.copy()]
    everything[:] = 0
    rn.gather_v(handle, x, everything, counts, 2)
    results.append(everything.copy())
    part = np.zeros(n, x.dtype)
    rn.broadcast(handle, everything, 2)
    rn.scatter_v(handle, everything, part, counts, 1)
    results.append(part.copy())
    rn.reduce_scatter_v(handle, everything, part, counts)
    results.append(part.copy())
    to, of = np.full(n, me + 1), np.arange(n) + 1
    received = np.zeros(of.sum(), x.dtype)
    rn.all_to_all_v(handle, np.full(n * (me + 1), x[0]), received, to, of)
    results.append(received)
    return results


@numba.njit(nogil=True)
def messages(handle: int, x: Any) -> Any:
    n, me = rn.world_size(handle), rn.rank(handle)
    before, after = np.empty_like(x), np.empty_like(x)
    sent = rn.isend(handle, x, (me + 1) % n)
    receive = rn.irecv(handle, before, (me - 1) % n)
    rn.wait(receive)
    rn.wait(sent)
    rn.wait(sent)  # which is complete
    rn.send(handle, x, (me - 1) % n, 7)
    rn.recv(handle, after, -1, 7)
    return before, after


def compile_alone(function: Any, *arguments: Any) -> None:
    """Before the ranks run, so that they do not wait for each other's compiler."""
    with rw.init("solo").dup() as group:
        function(group.handle, *arguments)


def test_collectives() -> None:
    def body(group: rw.Group) -> None:
        me, ranks, n = group.rank, np.arange(RANKS), 2 * RANKS
        results = collectives(group.handle, np.full(2, me + 1.0), np.zeros(n), np.zeros(2), np.zeros(n))
        everyone = np.repeat(ranks + 1, 2)
        expected = [[6, 6], [3, 3], [6, 6], [3, 3], [1 if me == 1 else me + 1] * 2]
        expected += [everyone, everyone * (me == 1), [me + 1] * 2, [RANKS * (me + 1)] * 2, np.repeat(ranks + me + 1, 2)]
        for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            assert list(result) == list(wanted), number

    collectives.compile("(int64, float64[::1], float64[::1], float64[::1], float64[::1])")
    run_ranks(body, RANKS)


@pytest.mark.slow
def test_every_dtype() -> None:
    kinds = [
        np.float32,
        np.int64,
        np.int32,
        np.int16,
        np.int8,
        np.uint64,
        np.uint8,
        np.bool_,
        np.complex64,
        np.complex128,
    ]

    def body(group: rw.Group) -> None:
        for kind in kinds:
            x = np.ones(2, kind)
            reduce_in_compiled_code(group.handle, x)
            assert list(x) == list(group.all_reduce(np.ones(2, kind)))

    for kind in kinds:
        compile_alone(reduce_in_compiled_code, np.ones(2, kind))
    run_ranks(body, 2)


@pytest.mark.slow
def test_vectors_and_messages() -> None:
    def body(group: rw.Group) -> None:
        me = group.rank
        x = np.full(RANKS, float(me))
        everything, gathered, scattered, reduced, exchanged = vectors(group.handle, x)
        assert list(everything) == [1, 2, 2]
        assert list(gathered) == ([1, 2, 2] if me == 2 else [0, 0, 0])
        assert list(scattered) == [[0, 0, 0], [1, 0, 0], [2, 2, 0]][me]
        assert list(reduced) == [[0, 0, 0], [3, 0, 0], [6, 6, 0]][me]
        assert list(exchanged) == [0, 1, 1, 2, 2, 2]
        before, after = messages(group.handle, x)
        assert set(before) == {(me - 1) % RANKS}
        assert set(after) == {(me + 1) % RANKS}

    vectors.compile("(int64, float64[::1])")
    messages.compile("(int64, float64[::1])")
    run_ranks(body, RANKS)


@numba.njit(nogil=True)
def reduce_in_compiled_code(handle: int, x: Any) -> None:
    rn.all_reduce(handle, x)


@numba.njit(nogil=True)
def gather_too_little(handle: int, x: Any) -> None:
    rn.all_gather(handle, x, x)


@numba.njit(nogil=True)
def send_to(handle: int, x: Any, dst: int) -> None:
    rn.send(handle, x, dst)


def test_errors_are_those_of_the_group() -> None:
    def body(group: rw.Group) -> None:
        with pytest.raises(ValueError, match="as many elements as the other"):
            gather_too_little(group.handle, np.zeros(2))
        with pytest.raises(ValueError, match="dest: rank 9 given, expected 0 to 1"):
            send_to(group.handle, np.zeros(2), 9)
        with pytest.raises(rw.MismatchError) as raised:
            reduce_in_compiled_code(group.handle, np.zeros(2 + group.rank))
        assert str(raised.value).count(f"at {__file__}:") == 2  # where Python calls the compiled function

    for function in (gather_too_little, reduce_in_compiled_code):
        function.compile("(int64, float64[::1])")
    send_to.compile("(int64, float64[::1], int64)")
    run_ranks(body, 2)


def read_only(x: Any) -> Any:
    x.flags.writeable = False
    return x


X, ROWS, COUNTS = np.ones(2), np.ones((2, 3)), np.ones(1, np.int64)
FORTRAN, FIXED = np.asfortranarray(ROWS), read_only(np.ones(2))


@pytest.mark.parametrize(
    ("call", "arrays", "text"),
    [
        ("all_reduce(h, x, 'sun')", (X,), r"op='sun': expected one of sum, mean"),
        ("all_reduce(h, x, 'mean')", (np.zeros(2, np.int64),), "a mean of integers is not an integer"),
        ("all_reduce(h, x)", (np.zeros((4, 4))[:, ::2],), "^x: .* expected a contiguous array"),
        ("all_reduce(h, x)", (np.zeros(2, "datetime64[s]"),), "expected one of float64"),
        ("all_reduce(h, x)", (FORTRAN,), "^x: .* expected a contiguous array in C's order"),
        ("broadcast(h, x)", (FORTRAN,), "^x: .* in C's order"),
        ("send(h, x, 0)", (FORTRAN,), "^x: .* in C's order"),
        ("all_gather(h, x, y)", (FORTRAN, ROWS), "^send: .* in C's order"),
        ("all_gather(h, x, y)", (ROWS, FORTRAN), "^recv: .* in C's order"),
        ("all_reduce(h, x)", (FIXED,), "^x: .* expected an array that may be written"),
        ("all_reduce(h, x)", (np.frombuffer(bytes(16)),), "^x: .* that may be written"),
        ("broadcast(h, x)", (FIXED,), "^x: .* that may be written"),
        ("reduce(h, x)", (FIXED,), "^x: .* that may be written"),
        ("recv(h, x, 0)", (FIXED,), "^x: .* that may be written"),
        ("irecv(h, x, 0)", (FIXED,), "^x: .* that may be written"),
        ("scatter(h, x, y)", (X, FIXED), "^recv: .* that may be written"),
        ("all_gather_v(h, x, y, z)", (X, X, COUNTS + 0.5), "^counts: .* expected an array of integers"),
        ("all_to_all_v(h, x, y, z, z)", (X, X, COUNTS + 0.5), "^send_counts: .* expected an array of integers"),
        ("broadcast(h, x, 0.5)", (X,), "^src: float64 given, expected an integer"),
        ("send(h, x, 0, 0.5)", (X,), "^tag: float64 given, expected an integer"),
        ("broadcast(h, x, 1 << 32)", (X,), "^src: a number that does not fit into 32 bits"),
        ("all_reduce(h, x, 0.5)", (X,), "^op: float64 given, expected an integer"),
        ("wait(x)", (X,), "^request: .* expected what isend or irecv has returned"),
        ("all_gather(h, x, x)", (X,), "^send and recv: memory that overlaps given"),
    ],
)
def test_what_is_refused(call: str, arrays: tuple[Any, ...], text: str) -> None:
    """All but the last by the compiler; the group can be used afterwards."""
    names: dict[str, Any] = {"rn": rn}
    exec(f"def call(h, x, y, z): rn.{call}", names)
    with rw.init("solo").dup() as group, pytest.raises((TypeError, ValueError), match=text):
        numba.njit(names["call"])(group.handle, *(*arrays, X, X)[:3])


@numba.njit(nogil=True)
def caught(handle: int, x: Any) -> int:
    errors = 0
    for _ in range(3):
        try:
            rn.broadcast(handle, x, 7)
        except Exception:  # noqa: BLE001 - the only kind that Numba has
            errors += 1
    rn.broadcast(handle, x, 0)
    return errors


def test_an_error_that_compiled_code_catches_is_over() -> None:
    with rw.init("solo").dup() as group:
        for _ in range(2):
            assert caught(group.handle, np.ones(2)) == 3
        with pytest.raises(ValueError, match="root: rank 7 given, expected 0 to 0"):
            numba.njit(lambda handle, x: rn.broadcast(handle, x, 7))(group.handle, np.ones(2))


@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_the_stencil(n: int) -> None:
    example = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "stencil_numba.py")
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), example, "--rows", "48", "--steps", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    steps, change = done.stdout.splitlines()
    assert steps.startswith(f"40 steps on {n} ranks, ")
    assert change == "the last change is 0.598678, as on one rank, bit for bit"
