"""Describes several ranks in words."""

from __future__ import annotations

from collections.abc import Iterable


def count_of_ranks(n: int, noun: str = "rank") -> str:
    """ "1 rank", "2 ranks"."""
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


def ranks_in_words(ranks: Iterable[int], noun: str = "rank") -> str:
    """The ranks (or nodes) in order, runs of three or more abbreviated: "rank 3", "ranks 0-2, 5, 6"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{noun}{'' if len(runs) == 1 == len(runs[0]) else 's'} {', '.join(words)}"
