"""Arguments of impossible sizes: the error names the argument, and the group continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
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
    "premul_sum int8": (
        lambda group: group.all_reduce(np.ones(2, np.int8), rw.premul_sum(300)),
        r"^op=premul_sum\(300\) on int8: expected a factor from -128 to 127$",
    ),
    "premul_sum uint8": (
        lambda group: group.all_reduce(np.ones(2, np.uint8), rw.premul_sum(-1)),
        r"^op=premul_sum\(-1\) on uint8: expected a factor from 0 to 255$",
    ),
    "premul_sum float": (
        lambda group: group.all_reduce(np.ones(2), rw.premul_sum(10**400)),
        r"^op=premul_sum\(2\*\*1328\.\.\.\) on float64: expected a factor that a float can hold$",
    ),
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

    assert run_ranks(2, ranks) == [2, 2]


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

    run_ranks(3, ranks)


def test_factors_on_tensors() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.uint16):
            x = torch.full((2,), 1.5).to(dtype)
            assert group.all_reduce(x, rw.premul_sum(2)).float().tolist() == [4 if dtype is torch.uint16 else 6] * 2
        with pytest.raises(ValueError, match=r"^op=premul_sum\(300\) on int8: expected a factor from -128 to 127$"):
            group.all_reduce(torch.ones(2, dtype=torch.int8), rw.premul_sum(300))
        with pytest.raises(ValueError, match=r"^op=premul_sum\(1180591620717411303424\) on int64: expected a factor"):
            group.all_reduce(torch.ones(2, dtype=torch.int64), rw.premul_sum(2**70))
        with torch.no_grad():
            x = torch.ones(2, requires_grad=True)
            assert group.all_reduce(x, rw.premul_sum(2), async_op=True).wait().tolist() == [4, 4]

    run_ranks(2, ranks)
