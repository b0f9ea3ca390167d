"""Finds the thresholds between algorithms from their times at several sizes. It measures nothing itself.

A block is one rank's part of an array, and the whole array for all_reduce, broadcast, reduce and reduce_scatter, as
in the tuning table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.system.tuning_file import NEVER
from rankwise.tools.bench.rank import CASES

GAIN = 1.05  # a threshold moves only if the calls whose algorithm changes become this much faster on average
BY_BLOCK = ("scatter", "all_to_all")
"""The operations for which the benchmark counts the whole array, and the tuning table one block of it."""

Costs = Mapping[tuple[str, int], Mapping[str, float]]
"""{(operation, block): {algorithm: time of a call}}."""


@dataclass(frozen=True)
class Rule:
    """A threshold, below and above which different algorithms run. On each side, the fastest that can run counts.

    low, high: the smallest and largest block that is measured, in bytes. up_to: the threshold is the last size of
    `below`, not the first of `above`. divided: the table divides it by the number of ranks. least: how many
    ranks the rule needs.
    """

    threshold: str
    operation: str
    below: tuple[str, ...]
    above: tuple[str, ...]
    low: int
    high: int
    up_to: bool = False
    divided: bool = False
    least: int = 2


_KIB, _MIB = 1 << 10, 1 << 20
_SLOTS = ("flat", "staged")
_BLOCKS = ("all_gather", "gather", "scatter", "all_to_all")

# The registered_ thresholds have no rule: above them, a call on private arrays must first find out that the arrays are
# not registered, and the times of forced algorithms do not include this.
RULES = (
    Rule("flat_all_reduce", "all_reduce", ("flat",), ("staged",), 128, 64 * _KIB, up_to=True, divided=True),
    Rule("flat_reduce", "reduce", ("flat",), ("staged",), 128, _MIB, up_to=True, least=3),
    Rule("single_copy_all_reduce", "all_reduce", _SLOTS, ("single_copy",), 32 * _KIB, 16 * _MIB),
    Rule("single_copy_reduce", "reduce", _SLOTS, ("single_copy",), 32 * _KIB, 16 * _MIB),
    Rule("single_copy_reduce_scatter", "reduce_scatter", _SLOTS, ("single_copy",), 32 * _KIB, 16 * _MIB),
    Rule("single_copy_broadcast", "broadcast", ("staged",), ("single_copy", "single_copy_split"), 4 * _KIB, 4 * _MIB),
    *(
        Rule(f"single_copy_{operation}", operation, ("staged",), ("single_copy",), 4 * _KIB, _MIB)
        for operation in _BLOCKS
    ),
    Rule("put_all_gather", "all_gather", ("staged", "single_copy"), ("single_copy_put",), 32 * _KIB, 4 * _MIB),
)


def rules(operations: Sequence[str], ranks: int) -> list[Rule]:
    """The rules for these operations, on so many ranks."""
    return [rule for rule in RULES if rule.operation in operations and rule.least <= ranks]


def blocks(rule: Rule) -> list[int]:
    """The powers of two at which the rule is measured."""
    return [1 << power for power in range(rule.low.bit_length() - 1, rule.high.bit_length())]


def size_of(operation: str, block: int, ranks: int) -> int:
    """The size as the benchmark counts it."""
    return block * ranks if operation in BY_BLOCK else block


def algorithms_at(operation: str, block: int, chosen: Sequence[Rule]) -> set[str]:
    """The algorithms that these rules compare at this point."""
    return {
        name
        for rule in chosen
        if operation == rule.operation and rule.low <= block <= rule.high
        for name in (*rule.below, *rule.above)
    }


def points(chosen: Sequence[Rule]) -> dict[str, list[int]]:
    """What these rules need: the blocks of each operation, in the order in which the operations are measured."""
    found: dict[str, set[int]] = {}
    for rule in sorted(chosen, key=lambda rule: list(CASES).index(rule.operation)):
        found.setdefault(rule.operation, set()).update(blocks(rule))
    return {operation: sorted(sizes) for operation, sizes in found.items()}


def threshold(rule: Rule, costs: Costs, ranks: int, default: int) -> int | None:
    """The threshold with which the measured calls are the fastest, or the default if no other is clearly faster.

    None if nothing was measured on one side, as with single copy where the system forbids it.
    """
    gains = _gains(rule, costs)
    if not gains:
        return None
    sizes = list(gains)
    edge = default // ranks if rule.divided else default
    usual = next((i for i, size in enumerate(sizes) if (size > edge if rule.up_to else size >= edge)), len(sizes))
    # `above` from the block of this number on; of equal ones the last, as it leaves more to the simpler algorithm.
    best = max(range(len(sizes), -1, -1), key=lambda first: sum(list(gains.values())[first:]))
    moved = list(gains.values())[min(best, usual) : max(best, usual)]
    if not moved or abs(sum(moved)) / len(moved) < math.log(GAIN):
        return default
    if rule.up_to:
        last = sizes[best - 1] if best else sizes[0] // 2
        return last * ranks if rule.divided else last
    return sizes[best] if best < len(sizes) else NEVER


def _gains(rule: Rule, costs: Costs) -> dict[int, float]:
    """By block: the logarithm of below / above."""
    gains: dict[int, float] = {}
    for block in blocks(rule):
        found = costs.get((rule.operation, block), {})
        below, above = ([found[name] for name in side if name in found] for side in (rule.below, rule.above))
        if below and above:
            gains[block] = math.log(min(below) / min(above))
    return gains
