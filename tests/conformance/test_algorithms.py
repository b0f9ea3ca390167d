"""Every algorithm of the native engine, forced, and the ones it chooses on either side of each threshold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwise import Group, _native
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.types import DType, ReduceOp
from rankwise.testing import RanksFailed, close_pools, run_ranks
from rankwise.testing.cases import Case, select
from rankwise.testing.suite import Result, Status, merged, run_cases

ALGORITHMS = [(operation, name) for operation, names in _native.algorithms().items() for name in names]
LARGEST = 16 << 20  # bytes of a rank's array up to which thresholds are looked for


@pytest.fixture(autouse=True)
def oversubscribed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANKWISE_OVERSUBSCRIBED", str(int(getattr(request, "param", False))))
    close_pools()  # their ranks have read their environment
    yield
    close_pools()


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
    results = merged(run_ranks(n, body, backend=backend))
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


@A_CORE_EACH
@pytest.mark.parametrize("direct", [True, False], ids=["single copy", "no single copy"])
@pytest.mark.parametrize("operation", list(_native.algorithms()))
def test_either_side_of_each_threshold(operation: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_DIRECT", str(int(direct)))
    n = 3
    blocks = n if operation in ("scatter", "reduce_scatter", "all_to_all") else 1  # of a rank's array
    op = ReduceOp.SUM if "reduce" in operation else None
    root = n - 1 if operation in ("broadcast", "reduce", "gather", "scatter") else None

    def body(group: Group) -> tuple[list[int], list[Result]]:
        found = thresholds(group, operation)
        counts = sorted({(count - side * blocks + blocks - 1) // blocks for count in found for side in (0, 1)})
        cases = [Case(operation, DType.F32, (count,), op, root, seed=seed) for seed, count in enumerate(counts)]
        results = run_cases(group, "pointer", cases)
        with group.comm.allocating():
            return found, [*results, *run_cases(group, "pointer", cases)]

    found, results = zip(*run_ranks(n, body, backend="threads"), strict=True)
    assert len(found[0]) >= 2
    assert found.count(found[0]) == n, "the ranks would not choose alike"
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
    assert run_ranks(2, body, backend=backend) == [words, words]


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
        run_ranks(2, lambda group: group.rank, timeout=10)
    assert words in str(caught.value)
