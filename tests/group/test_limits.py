"""Arguments of impossible sizes: the error names the argument, and the group continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankwise.group.group import Group
from rankwise.testing import run_ranks

MOST_DIMS = r"^x: expected an array of at most \d+ dimensions, as the result has one more, got \d+$"
CASES: dict[str, tuple[Callable[[Group], Any], str]] = {
    "empty": (lambda group: group.empty((2**40, 2**40)), r"^shape=\(1099511627776, 1099511627776\): .* float64$"),
    "empty of nothing": (lambda group: group.empty((0, 2**70)), r"^shape=\(0, 11.*\): expected a shape of fewer than"),
    "recv": (lambda group: group.recv((2**62,), 0, dtype="int16"), r"^x=\(4611.*,\): .* 2\*\*63 bytes in int16$"),
    "split": (lambda group: group.split(0, 2**70), r"^key=1180591620717411303424: expected an int from -2\*\*63"),
    "split color": (lambda group: group.split(10**5000), r"^color=2\*\*16609\.\.\.: expected an int from"),
    "timeout": (
        lambda group: setattr(group, "timeout", 10**400),
        r"^timeout=2\*\*1328\.\.\.: expected a number",
    ),
    "negative timeout": (
        lambda group: setattr(group, "timeout", -(10**400)),
        r"^timeout=-2\*\*1328\.\.\.: expected a number",
    ),
    "all_reduce": (lambda group: group.all_reduce(2**63), r"^x=9223372036854775808: expected an int from -2\*\*63 to"),
    "dst": (lambda group: group.send(1, 10**5000), r"^dst=2\*\*16609\.\.\.: expected a rank of the group, 0 to 1$"),
    "all_gather": (lambda group: group.all_gather(most_dims()), MOST_DIMS),
    "all_gather strided": (lambda group: group.all_gather(most_dims(strided=True)), MOST_DIMS),
    "all_gather async": (lambda group: group.all_gather(most_dims(), async_op=True), MOST_DIMS),
    "gather": (lambda group: group.gather(most_dims()), MOST_DIMS),
    "gather strided": (lambda group: group.gather(most_dims(strided=True), 1), MOST_DIMS),
    "gather async": (lambda group: group.gather(most_dims(), 1, async_op=True), MOST_DIMS),
}


def most_dims(strided: bool = False) -> Any:
    """An array of as many dimensions as NumPy has."""
    dims = int(getattr(np, "MAXDIMS", 64))
    return np.zeros((4, *(1,) * (dims - 1)))[:: 2 if strided else 1]


@pytest.mark.parametrize("case", CASES)
def test_every_rank_refuses_too_many_dimensions_before_sending(case: str) -> None:
    call, words = CASES[case]

    def ranks(group: Group) -> int:
        with pytest.raises(ValueError, match=words):
            call(group)
        return group.all_reduce(1)

    assert run_ranks(ranks, 2) == [2, 2]


def test_functions_reduce_arrays_of_the_most_dimensions() -> None:
    def ranks(group: Group) -> None:
        x = np.full((1,) * most_dims().ndim, group.rank + 1.0)
        assert group.scan(x, np.multiply).item() == [1, 2, 6][group.rank]
        assert group.all_reduce(x.copy(), np.multiply).item() == 6
        assert group.all_reduce(x.copy(), np.multiply).shape == x.shape
        part = group.reduce_scatter(np.full((3, *x.shape[1:]), 2.0), np.multiply)
        assert part.item() == 8
        number = group.all_reduce(np.float32(2), np.multiply)
        assert number == 8

    run_ranks(ranks, 3)
