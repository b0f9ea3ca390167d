"""What the backends over other engines check before their engine moves data. The ranks are threads, as in
../test_gloo_in_threads.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rankwise import Group, MismatchError
from rankwise.backends.tuning import FEW
from rankwise.contract.types import DType
from rankwise.testing import run_ranks

sys.path.insert(0, str(Path(__file__).parents[1]))
from gloo_in_threads import opener


@pytest.mark.parametrize("n", [2, FEW + 7])
def test_all_to_all_of_different_lengths(n: int) -> None:
    """2 ranks compare their counts in the envelopes; the counts of many do not fit there."""

    def body(group: Group) -> str:
        group.all_to_all(np.arange(n + 1))
        x = np.arange(n + 1 if group.rank else 3 * n - 1)
        out = np.full(-(-(x.size - group.rank) // n) * n, -1)
        with pytest.raises(MismatchError) as caught:
            group.all_to_all(x, out=out)
        assert (out == -1).all()
        assert sorted(caught.value.calls) == list(range(n))
        with pytest.raises(MismatchError):
            group.barrier()
        return str(caught.value)

    errors = run_ranks(body, n, backend=opener())
    assert errors == [errors[0]] * n
    sent = 2 if n == 2 else 3
    assert errors[0].startswith(f"all_to_all_v: rank 0 sends {sent} elements to rank 1, which expects 1 (operation #")


@pytest.mark.parametrize("size", [3, 20_000])
def test_counts_that_another_rank_does_not_expect(size: int) -> None:
    def body(group: Group) -> str:
        x, out = np.ones((2, size)), np.zeros((2, size))
        sends = [size, size]
        expects = [size, size - 1] if group.rank == 0 else [size, size]
        with pytest.raises(MismatchError) as caught:
            group.comm.all_to_all_v(x.ctypes.data, out.ctypes.data, sends, expects, DType.F64)
        assert not out.any()
        return str(caught.value)

    errors = run_ranks(body, 2, backend=opener())
    assert errors[0] == errors[1]
    for words in (
        f"all_to_all_v: rank 1 sends {size} elements to rank 0, which expects {size - 1} (operation #",
        f"rank 0: all_to_all_v(send_counts=[{size}, {size}], recv_counts=[{size}, {size - 1}], dtype=float64)",
        f"rank 1: all_to_all_v(send_counts=[{size}, {size}], recv_counts=[{size}, {size}], dtype=float64)",
    ):
        assert words in errors[0]
