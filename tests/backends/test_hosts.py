"""Which ranks share a host, and how data is divided among the lanes."""

from __future__ import annotations

import numpy as np
import pytest

from rankwise.backends.hierarchical.hosts import Layout
from rankwise.contract.operations import divided


def test_hosts_are_numbered_by_their_first_ranks() -> None:
    layout = Layout.of(["b", "a", "b", "c", "a"])
    assert layout.host == (0, 1, 0, 2, 1)
    assert layout.members == ((0, 2), (1, 4), (3,))
    assert (layout.hosts, layout.lanes) == (3, 1)
    assert [layout.local(rank) for rank in range(5)] == [0, 0, 1, 0, 1]
    assert layout.blobs([1, 2, 3, 4, 5]) == [4, 7, 4]


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 2, 2, 1), (0, 1, 1)])
def test_an_arrangement_moves_every_element_to_its_lane(hosts: tuple[int, ...]) -> None:
    layout = Layout.of(hosts)
    rng = np.random.default_rng(len(hosts))
    for _ in range(20):
        counts = [int(n) for n in rng.integers(0, 9, len(hosts)) * rng.integers(0, 2, len(hosts))]
        slices = [divided(blob, layout.lanes) for blob in layout.blobs(counts)]
        data = np.arange(sum(counts))
        carried = np.full(sum(counts), -1)
        for at, to, length in layout.arrangement(counts, slices):
            assert length > 0
            carried[to : to + length] = data[at : at + length]
        starts = np.cumsum([0, *counts])
        blobs = [np.concatenate([data[starts[r] : starts[r + 1]] for r in ranks]) for ranks in layout.members]
        want = []
        for lane in range(layout.lanes):
            for blob, by_lane in zip(blobs, slices, strict=True):
                start = sum(by_lane[:lane])
                want += blob[start : start + by_lane[lane]].tolist()
        assert carried.tolist() == want
