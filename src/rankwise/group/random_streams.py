"""Random numbers that differ from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwise.group.base import GroupBase


class RandomStreams(GroupBase):
    """The operation that makes a rank's random numbers."""

    def rng(self, seed: int | Sequence[int]) -> np.random.Generator:
        """This rank's generator of random numbers, whose stream is independent of the other ranks'.

        The call communicates nothing. Rank r gets the r-th of the streams that NumPy's SeedSequence.spawn derives from
        the seed, whatever the number of ranks; a second call with the same seed begins the same stream again. If
        a program's results must not depend on the number of ranks, draw the numbers for each piece of its data
        from `np.random.default_rng([seed, piece])` instead.

        Args:
            seed: one or several ints of at least 0, the same on every rank.

        Example:
            >>> numbers = group.all_gather(group.rng(7).integers(100, size=3))
            >>> first, second = (np.random.default_rng(s) for s in np.random.SeedSequence(7).spawn(2))
            >>> numbers.tolist() == [first.integers(100, size=3).tolist(), second.integers(100, size=3).tolist()]
            True
        """
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(self.rank,)))
