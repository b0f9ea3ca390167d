"""A rank's random numbers."""

from __future__ import annotations

import numpy as np

from rankwise.group.group import Group
from rankwise.testing import run_ranks


def test_the_streams_are_those_that_numpy_spawns() -> None:
    def ranks(group: Group) -> list[list[int]]:
        return [group.rng(seed).integers(1000, size=5).tolist() for seed in (0, 7, [7, 1])]

    for n in (1, 3):
        for rank, found in enumerate(run_ranks(ranks, n)):
            for seed, numbers in zip((0, 7, [7, 1]), found, strict=True):
                stream = np.random.SeedSequence(seed).spawn(n)[rank]
                assert numbers == np.random.default_rng(stream).integers(1000, size=5).tolist()
