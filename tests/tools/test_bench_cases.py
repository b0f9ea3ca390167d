"""Sizes, formulas, statistics and tables of `rankwise bench`, and the data of its check."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from rankwise.tools.bench import cases, rank, report
from rankwise.tools.bench.cases import OPERATIONS, parse_sizes
from rankwise.tools.bench.timing import Measurement

OPS_OF_INTEGERS = ("sum", "product", "min", "max", "band", "bor", "bxor")


@pytest.mark.parametrize(
    ("text", "factor", "sizes"),
    [
        (
            "8:64M",
            4,
            [8, *(4**power for power in range(3, 14))],
        ),
        ("8:64", 2, [8, 16, 32, 64]),
        ("8:40", 4, [8, 40]),
        ("8:16", 4, [8, 16]),
        ("8:8", 4, [8]),
        ("1M,8,1K", 4, [8, 1 << 10, 1 << 20]),
        ("1KiB,2kb", 4, [1 << 10, 2 << 10]),
    ],
)
def test_sizes(text: str, factor: int, sizes: list[int]) -> None:
    assert parse_sizes(text, factor) == sizes


@pytest.mark.parametrize("text", ["", "x", "0", "-8", "8:", "64:8", "1.5K", "8,,16", "8:16:32"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_sizes(text, 4)


def test_names_of_sizes() -> None:
    assert [cases.size_name(size) for size in (8, 1000, 1024, 1536, 64 << 20, 3 << 30)] == [
        "8",
        "1000",
        "1K",
        "1536",
        "64M",
        "3G",
    ]


def test_counts_are_whole_elements_and_whole_parts() -> None:
    assert OPERATIONS["all_reduce"].count(9, 4, 4) == 3
    assert OPERATIONS["all_reduce"].count(1, 8, 4) == 1
    assert OPERATIONS["reduce_scatter"].count(8, 4, 4) == 4
    assert OPERATIONS["all_to_all"].count(40, 4, 4) == 12
    assert OPERATIONS["barrier"].count(8, 4, 4) == 0


@pytest.mark.parametrize(
    ("name", "total", "factor"),
    [
        ("all_reduce", 1, 1.5),
        ("broadcast", 1, 1),
        ("reduce", 1, 1),
        ("all_gather", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 1, 0.75),
        ("reduce_scatter", 1, 0.75),
        ("all_to_all", 1, 0.75),
        ("send_recv", 1, 1),
    ],
)
def test_bandwidths_of_4_ranks_match_nccl_tests(name: str, total: int, factor: float) -> None:
    operation = OPERATIONS[name]
    algorithm = operation.algorithm_bandwidth(1000, 4, 1e-6)
    assert algorithm == pytest.approx(total)
    assert operation.bus_bandwidth(1000, 4, 1e-6) == pytest.approx(algorithm * factor)


def test_the_slowest_rank_of_each_batch_counts() -> None:
    assert cases.slowest([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]]) == [3.0, 5.0, 2.0]


def test_summary() -> None:
    times = cases.summary([float(i) for i in range(200, 0, -1)])
    assert (times.batches, times.median, times.minimum, times.p99) == (200, 100.5, 1.0, 198.0)
    assert cases.summary([7.0]) == cases.Times(1, 7.0, 7.0, 7.0)


# ---- the check ----


def blocks(array: np.ndarray, n: int) -> list[np.ndarray]:
    return np.split(array, n)


def right_results(operation: str, op: str, given: list[np.ndarray]) -> list[np.ndarray | None]:
    """What every rank must receive, by the operations' definitions."""
    n = len(given)
    ufuncs: dict[str, Callable[..., np.ndarray]] = {
        "sum": np.add.reduce,
        "product": np.multiply.reduce,
        "min": np.minimum.reduce,
        "max": np.maximum.reduce,
        "band": np.bitwise_and.reduce,
        "bor": np.bitwise_or.reduce,
        "bxor": np.bitwise_xor.reduce,
        "mean": np.mean,
    }
    nothing: list[np.ndarray | None] = [None] * (n - 1)
    match operation:
        case "all_reduce":
            return [ufuncs[op](np.stack(given), axis=0)] * n
        case "reduce":
            return [ufuncs[op](np.stack(given), axis=0), *nothing]
        case "broadcast":
            return [given[0]] * n
        case "all_gather":
            return [np.concatenate(given)] * n
        case "gather":
            return [np.concatenate(given), *nothing]
        case "scatter":
            return list(blocks(given[0], n))
        case "reduce_scatter":
            return list(blocks(ufuncs[op](np.stack(given), axis=0), n))
        case "all_to_all":
            return [np.concatenate([blocks(x, n)[i] for x in given]) for i in range(n)]
    return [given[i ^ 1] if i ^ 1 < n else None for i in range(n)]


CASES = [
    *itertools.product(OPERATIONS.keys() - {"barrier"}, ["sum"], ["float32", "int8"]),
    *itertools.product(["all_reduce", "reduce_scatter"], OPS_OF_INTEGERS, ["int32", "uint64"]),
    *itertools.product(["all_reduce"], ["sum", "mean", "product"], ["float16", "float64"]),
]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize(("operation", "op", "name"), sorted(CASES))
def test_expected_results_match_the_definitions(operation: str, op: str, name: str, n: int) -> None:
    dtype = np.dtype(name)
    count = 1200 * n  # more than a period
    given = [rank.repeated(pattern, dtype, 0, count) for pattern in rank.patterns(op, n)]
    for number, right in enumerate(right_results(operation, op, given)):
        expected = rank.expected(rank.Row(*OPERATIONS[operation].asked), op, dtype, count, n, number)
        if right is None:
            assert expected is None
        else:
            assert expected is not None
            assert rank.wrong_bytes(right.astype(dtype), expected) == 0


@pytest.mark.parametrize("op", [*OPS_OF_INTEGERS, "mean"])
def test_check_data_differs_between_ranks_and_positions(op: str) -> None:
    rows = rank.patterns(op, 4)
    assert all((a != b).any() for a, b in itertools.combinations(rows, 2))
    result = rank.reduced(op, rows)
    for shift in (1, 2, 16, 1024, 1 << 20):
        assert (result != np.roll(result, shift)).any()


def test_wrong_bytes_are_counted() -> None:
    right = np.arange(100, dtype=np.float32)
    result = right.copy()
    assert rank.wrong_bytes(result, right) == 0
    result.view(np.uint8)[17] ^= 1
    result.view(np.uint8)[399] ^= 0x80
    assert rank.wrong_bytes(result, right) == 2
    assert rank.wrong_bytes(right[:99], right) == 400


# ---- the table ----


def result(contender: str, median: float, size: int = 1024, wrong: int | None = None) -> Measurement:
    return Measurement(contender, "all_reduce", 2, size, size // 4, 10, cases.Times(5, median, median, median), wrong)


def test_ratios() -> None:
    ratios = report.ratios([result("rankwise", 2.0), result("openmpi", 4.0), result("mpich", 5.0), result("gloo", 1.0)])
    assert ratios == {"openmpi": 0.5, "mpich": 0.4, "gloo": 2.0, "best MPI": 0.5}
    assert report.ratios([result("openmpi", 4.0)]) == {}


@pytest.mark.parametrize("others", [[], ["gloo"], ["openmpi", "mpich", "gloo"], ["native", "openmpi", "mpich", "gloo"]])
@pytest.mark.parametrize("check", [False, True])
def test_the_table_fits_its_width(others: list[str], check: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = report.Table(others, check)
    wrong = 0 if check else None
    lines = table.head().splitlines()
    lines.append(table.row([result(name, 0.4321, 64 << 20, wrong) for name in ["rankwise", *others]]))
    lines.append(table.row([result("rankwise", 1.2e-7, 8, wrong)]))
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 80


def test_numbers() -> None:
    values = (0.0123, 0.456, 1.234, 45.67, 789.9, 26900.4)
    assert [report.number(value) for value in values] == ["0.0123", "0.456", "1.23", "45.7", "790", "26,900"]
