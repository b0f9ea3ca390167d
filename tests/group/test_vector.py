"""The operations with per-rank counts: arguments, kinds of array, errors found late."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rankwise.contract.errors import MismatchError
from rankwise.group.group import Group
from rankwise.testing import run_ranks


def test_arguments_are_refused_before_anything_is_sent() -> None:
    def ranks(group: Group) -> None:
        x = np.ones((4, 2))
        if group.rank == 1:
            for counts in ([4], [1, 2], [5, -1], [1, 1, 2], [], None):
                text = re.escape(f"counts={counts!r}: expected 2 counts, one per rank, that add up to 4, the length of")
                with pytest.raises(ValueError, match=f"^{text}"):
                    group.all_to_all_v(x, counts)
                with pytest.raises(ValueError, match=f"^{text}"):
                    group.reduce_scatter_v(x, counts)
                with pytest.raises(ValueError, match=f"^{text}"):
                    group.scatter_v(x, counts, 1)
            for counts in ([1.5, 2.5], "ab", 4):
                with pytest.raises(TypeError, match=r"^counts=.*: expected a sequence of ints$"):
                    group.all_to_all_v(x, counts)
            with pytest.raises(ValueError, match=r"^x: expected an array with an axis 0"):
                group.gather_v(3.0)
            with pytest.raises(TypeError, match=r"^op='mean' on int64"):
                group.reduce_scatter_v(np.ones(2, int), [1, 1], "mean")
            with pytest.raises(ValueError, match=r"^out: expected dtype float64, got float32$"):
                group.all_to_all_v(x, [2, 2], out=np.empty((4, 2), np.float32))
            with pytest.raises(ValueError, match=r"^out: expected memory of its own, but it overlaps x$"):
                group.reduce_scatter_v(x, [2, 2], out=x[:2])
            with pytest.raises(ValueError, match=r"^out: expected shape \(1, 2\), got \(2, 2\)$"):
                group.scatter_v(x, [3, 1], 1, out=np.empty((2, 2)))
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_a_late_error_about_out_does_not_fail_the_group() -> None:
    def ranks(group: Group) -> None:
        x = np.ones((2, 3))
        out = np.zeros((7, 3)) if group.rank == 0 else None
        calls = (
            lambda: group.gather_v(x, 0, out=out),
            lambda: group.all_to_all_v(x, [1, 1], out=out),
            lambda: group.scatter_v(*((x, [1, 1]) if group.rank == 1 else ()), src=1, out=out),
        )
        for call in calls:
            if group.rank == 0:
                with pytest.raises(ValueError, match=r"^out: expected shape \(\d, 3\), got \(7, 3\)$"):
                    call()
                assert out is not None
                assert (out == 0).all()
            else:
                call()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


def test_ranks_pass_different_counts() -> None:
    def ranks(group: Group) -> None:
        with pytest.raises(MismatchError):
            group.reduce_scatter_v(np.ones(4), [1, 3] if group.rank else [2, 2])

    run_ranks(ranks, 2)


def test_tensors_and_views() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        me = group.rank
        x = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
        rows, counts = group.all_to_all_v(x.T.contiguous().T + 10 * me, [1, 2])
        assert rows.dtype is torch.bfloat16
        assert counts == [me + 1] * 2
        found = group.gather_v(x[: me + 1], 1)
        assert found is None if me == 0 else found.tolist() == [[0, 1], [0, 1], [2, 3]]
        part = group.scatter_v(x[::2] if me == 0 else torch.empty(0), [2, 0] if me == 0 else None)
        assert tuple(part.shape) == ((2, 2) if me == 0 else (0, 2))
        assert isinstance(part, torch.Tensor)
        some = np.arange(12).reshape(3, 4)[:, 1::2]
        assert group.reduce_scatter_v(some, [0, 3]).tolist() == ([] if me == 0 else (2 * some).tolist())

    run_ranks(ranks, 2)
