"""Every algorithm of the native engine, forced, and the ones it chooses on either side of each threshold."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from rankwise import Group, _native
from rankwise.backends.native import shm
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.types import DType, ReduceOp
from rankwise.launch.environment import find_job
from rankwise.system.settings import Settings
from rankwise.testing import RanksFailed, run_ranks
from rankwise.testing.cases import Case, select
from rankwise.testing.suite import Result, Status, merged, run_cases

ALGORITHMS = [(operation, name) for operation, names in _native.algorithms().items() for name in names]
INLINE = 96  # bytes that travel in a slot's header
LARGEST = 16 << 20  # bytes of a rank's array up to which thresholds are looked for


T = TypeVar("T")


@pytest.fixture(autouse=True)
def oversubscribed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_OVERSUBSCRIBED", str(int(getattr(request, "param", False))))


def on_ranks(n: int, body: Callable[[Group], T], backend: str) -> list[T]:
    """`body` on n ranks whose group has read the variables of this process; rank processes are kept for other tests."""
    if backend == "threads":
        return run_ranks(body, n)
    variables = {name: value for name, value in os.environ.items() if name.startswith("RANKWISE_")}

    def anew(group: Group) -> T:
        job = find_job(os.environ, Settings.read())
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with Group(shm.open_communicator(job, 30.0), backend="shm") as own:
                return body(own)

    return run_ranks(anew, n, backend="shm")


# native/tests/algorithms_test.cpp, in `make test`, forces each algorithm on oversubscribed ranks too.
A_CORE_EACH = pytest.mark.parametrize(
    "oversubscribed",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["a core each", "oversubscribed"],
    indirect=True,
)


def wrong(results: list[Result]) -> list[str]:
    return [f"{r.case}: {r.detail}" for r in results if r.status is Status.FAIL]


# Between threads a single copy is a memcpy, so it is also forced between processes; make test does only that.
FORCED = [
    pytest.param(
        *("threads", 2 if name.endswith("split") else 3, operation, name),
        marks=pytest.mark.slow if name.startswith("single_copy") else (),
    )
    for operation, name in ALGORITHMS
]
FORCED += [("shm", 2, operation, name) for operation, name in ALGORITHMS if name.startswith("single_copy")]


@A_CORE_EACH
@pytest.mark.parametrize(("backend", "n", "operation", "algorithm"), FORCED)
def test_forced(backend: str, n: int, operation: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's cases; those that the algorithm cannot run are refused, and the group continues."""
    monkeypatch.setenv("RANKWISE_ALGORITHM", f"{operation}={algorithm}")

    def body(group: Group) -> list[Result]:
        with group.comm.allocating():  # in registered memory
            registered = run_cases(group, "pointer", cases)
        return registered if algorithm.startswith("registered") else [*registered, *run_cases(group, "pointer", cases)]

    cases = select(operation, "pointer", n)
    results = merged(on_ranks(n, body, backend))
    assert not wrong(results)
    ran = [r for r in results if r.status is Status.PASS]
    most = max(case.shape[0] * case.dtype.itemsize for case in cases)
    if algorithm not in ("inline", "flat"):
        assert any(r.case.shape[0] * r.case.dtype.itemsize == most for r in ran)
    assert any(r.case.shape[0] > 1 for r in ran)


def thresholds(group: Group, operation: str) -> list[int]:
    """The sizes of a rank's array, in float32, from which on other algorithms are chosen than below."""

    def chosen(count: int) -> list[str]:
        return group.comm.shortcuts.algorithms(operation, count * 4)  # type: ignore[attr-defined, no-any-return]

    found, low = [], 1
    while low < LARGEST // 4:
        high = low
        while high < LARGEST // 4 and chosen(high) == chosen(low):
            high *= 2
        if chosen(high) == chosen(low):
            break
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if chosen(middle) == chosen(low) else (low, middle)
        found.append(high)
        low = high
    return found


def expected_thresholds(operation: str, table: dict[str, int], n: int, direct: bool) -> list[int]:
    """The same from the table of thresholds, which are in bytes: of an array, or of a block of it."""
    up_to, first = [INLINE], []
    if operation == "all_reduce":
        up_to.append(table["flat_all_reduce"] // n)
    elif operation == "reduce":
        up_to.append(table["flat_reduce"])
    elif operation == "all_gather":
        first.append(table["put_all_gather"])
    if "reduce" in operation:
        first.append(table["registered_reduction"])
        if direct:
            first.append(table[f"single_copy_{operation}"])
    else:
        blocks = n if operation in ("scatter", "all_to_all") else 1
        single_copy = table[f"single_copy_{operation}"] if direct else LARGEST
        first.append(blocks * single_copy)
        if table["registered_block"] < single_copy:
            first.append(blocks * table["registered_block"])
    return sorted([size // 4 + 1 for size in up_to] + [size // 4 for size in first if size < LARGEST])


@A_CORE_EACH
@pytest.mark.parametrize("direct", [True, False], ids=["single copy", "no single copy"])
@pytest.mark.parametrize("operation", list(_native.algorithms()))
def test_either_side_of_each_threshold(operation: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_DIRECT", str(int(direct)))
    n = 3
    blocks = n if operation in ("scatter", "reduce_scatter", "all_to_all") else 1  # of a rank's array
    op = ReduceOp.SUM if "reduce" in operation else None
    root = n - 1 if operation in ("broadcast", "reduce", "gather", "scatter") else None

    def body(group: Group) -> list[Result]:
        found = thresholds(group, operation)
        cores, table = group.comm.shortcuts.thresholds  # type: ignore[attr-defined]
        # Ranks that yield their core use slots again where results no longer fit the cache, which is this machine's.
        last = -1 if (operation, cores) == ("all_gather", "yielded_cores") else None
        assert found[:last] == expected_thresholds(operation, table, n, direct)
        counts = sorted({(count - side * blocks + blocks - 1) // blocks for count in found for side in (0, 1)})
        cases = [Case(operation, DType.F32, (count,), op, root, seed=seed) for seed, count in enumerate(counts)]
        results = run_cases(group, "pointer", cases)
        with group.comm.allocating():
            return [*results, *run_cases(group, "pointer", cases)]

    results = run_ranks(body, n, backend="threads")
    assert not wrong(merged(results))
    assert all(r.status is Status.PASS for r in results[0])


@pytest.mark.parametrize("backend", ["shm", "threads"])
def test_a_forced_algorithm_that_cannot_run_names_its_needs(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_ALGORITHM", "all_reduce=inline, broadcast = registered")

    def body(group: Group) -> list[str]:
        import numpy as np

        said = []
        for call in (lambda: group.all_reduce(np.ones(100)), lambda: group.broadcast(np.ones(10_000))):
            with pytest.raises(UnsupportedError) as caught:
                call()
            said.append(str(caught.value))
        assert group.all_reduce(np.ones(3)).tolist() == [2.0] * 3  # the group goes on
        return said

    words = [
        f"RANKWISE_ALGORITHM=all_reduce=inline is not supported by the {backend} backend: it takes at most 96 bytes, "
        "and this call has 800",
        f"RANKWISE_ALGORITHM=broadcast=registered is not supported by the {backend} backend: it needs registered "
        "buffers (group.empty) on all ranks, and some rank passed another buffer",
    ]
    assert on_ranks(2, body, backend) == [words, words]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allreduce=staged", "the operation 'allreduce' given to threads, expected one of all_reduce, broadcast"),
        (
            "all_reduce=ring",
            "the algorithm 'ring' given for all_reduce of threads, expected one of inline, flat, staged",
        ),
        ("all_reduce", "expected operation=algorithm"),
    ],
)
def test_unknown_names(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_ALGORITHM", text)
    with pytest.raises((RanksFailed, ValueError)) as caught:
        run_ranks(lambda group: group.rank, 2, timeout=10)
    assert words in str(caught.value)
