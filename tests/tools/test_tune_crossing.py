"""From times to thresholds, without measuring anything."""

from __future__ import annotations

import pytest

from rankwise import _native
from rankwise.system.tuning_file import NEVER
from rankwise.tools.tune.command import RULES, Costs, Rule, algorithms_at, blocks, points, rules, size_of, threshold

FROM = Rule("from", "a", ("slow", "staged"), ("direct",), 1024, 16384)
UP_TO = Rule("up_to", "a", ("flat",), ("staged",), 1024, 16384, up_to=True, divided=True)


def costs(
    crossing: float, below: str = "staged", above: str = "direct", operation: str = "a", steep: float = 1
) -> Costs:
    """`below` is the faster one up to `crossing`; both take equally long there."""
    return {
        (operation, block): {below: 1.0 * (block / crossing) ** steep, above: 1.0}
        for block in (1 << p for p in range(10, 15))
    }


def test_every_threshold_of_the_table_has_one_rule() -> None:
    for thresholds in _native.thresholds().values():
        measured = [name for name in thresholds if not name.startswith("registered_")]
        assert sorted(rule.threshold for rule in RULES) == sorted(measured)
    table = _native.algorithms()
    for rule in RULES:
        for side in (rule.below, rule.above):
            assert set(side) & set(table[rule.operation]), rule


@pytest.mark.parametrize(("crossing", "found"), [(3000, 4096), (6000, 8192), (500, 1024), (20_000, NEVER)])
def test_the_first_size_at_which_the_second_algorithm_is_faster(crossing: float, found: int) -> None:
    assert threshold(FROM, costs(crossing), 4, 1 << 20 if crossing < 10_000 else 1024) == found


@pytest.mark.parametrize(("crossing", "found"), [(3000, 2048 * 4), (500, 512 * 4), (20_000, 16384 * 4)])
def test_the_last_size_of_the_first_algorithm_times_the_ranks(crossing: float, found: int) -> None:
    assert threshold(UP_TO, costs(crossing, "flat", "staged"), 4, 1 << 20 if crossing < 10_000 else 4) == found


def test_one_outlier_does_not_move_the_threshold() -> None:
    noisy = {point: dict(times) for point, times in costs(3000).items()}
    noisy["a", 1024]["direct"] = 0.3  # the two at 1024 and 2048 together speak for the first algorithm
    assert threshold(FROM, noisy, 4, 1 << 20) == 4096


@pytest.mark.parametrize("default", [1024, 3000, 4096, NEVER])
def test_a_small_gain_leaves_the_default(default: int) -> None:
    assert threshold(FROM, costs(4000, steep=0.01), 4, default) == default


def test_a_default_between_the_same_two_sizes_stays() -> None:
    assert threshold(FROM, costs(3000), 4, 3500) == 3500
    assert threshold(UP_TO, costs(3000, "flat", "staged"), 4, 3500 * 4) == 3500 * 4


def test_the_fastest_of_each_side_counts() -> None:
    with_slow = {point: {**times, "slow": 100.0} for point, times in costs(6000).items()}
    assert threshold(FROM, with_slow, 4, 0) == 8192
    assert threshold(FROM, costs(6000, operation="b"), 4, 0) is None  # another operation's


def test_what_cannot_run_has_no_threshold() -> None:
    assert threshold(FROM, {("a", 1024): {"staged": 1.0}}, 4, 4096) is None
    assert threshold(FROM, {}, 4, 4096) is None


def test_which_points_are_measured() -> None:
    assert "flat_reduce" not in {rule.threshold for rule in rules(["reduce"], 2)}
    assert {rule.threshold for rule in rules(["broadcast"], 3)} == {"single_copy_broadcast"}
    chosen = rules(["reduce", "scatter"], 3)
    assert {rule.threshold for rule in chosen} == {"flat_reduce", "single_copy_reduce", "single_copy_scatter"}
    found = points(chosen)
    assert list(found) == ["reduce", "scatter"]
    assert (found["reduce"][0], found["reduce"][-1]) == (128, 16 << 20)
    assert found["scatter"] == blocks(chosen[2])
    assert algorithms_at("reduce", 128, chosen) == {"flat", "staged"}
    assert algorithms_at("reduce", 16 << 20, chosen) == {"flat", "staged", "single_copy"}
    assert [size_of(operation, 100, 3) for operation in ("scatter", "reduce", "all_to_all")] == [300, 100, 300]
