"""Fit a linear model while ranks are killed, and end with the same weights all the same.

    rankwise run -n 3 --restarts 100 examples/elastic.py --kill-every 2      lost ranks are started again
    rankwise run -n 3 --keep-going examples/elastic.py --kill-every 2        the others go on without them

What a step changes is in a State, which each rank commits after the step. When a rank is killed, the
others go back to the last step that all have committed, with a replacement that finds its own commit, or
without the lost rank. A step is the same on any number of ranks, except for rounding, so rank 0 can check
the result by computing alone.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time

import numpy as np
from numpy.typing import NDArray

import rankwise as rw

DATA = np.random.default_rng(0)
X = DATA.normal(size=(1000, 8))
Y = X @ np.arange(8.0) + DATA.normal(size=1000)


def descend(weights: NDArray[np.float64], group: rw.Group) -> None:
    """One step of gradient descent, in place. Each rank computes the gradient of its own rows."""
    mine = slice(group.rank, None, group.world_size)
    gradient = X[mine].T @ (X[mine] @ weights - Y[mine])
    weights -= 0.02 * group.all_reduce(gradient) / len(X)


def kill_this_rank_some_day(mean: float, safe: threading.Event) -> None:
    """Kill this process after a random time, on average `mean` seconds, unless `safe` is set by then."""

    def kill() -> None:
        if not safe.wait(random.expovariate(1 / mean)):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a linear model while ranks are killed.")
    parser.add_argument("--kill-every", type=float, metavar="S", help="kill a rank every S seconds on average")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    weights = np.zeros(8)
    state = rw.elastic.State(arrays={"weights": weights})
    safe = threading.Event()

    @rw.elastic.run(state)
    def train(group: rw.Group, state: rw.elastic.State) -> rw.Group:
        speaker = group.all_reduce(group.rank if state.resumptions else group.world_size, "min")
        if group.rank == speaker:  # the first of the ranks that went on
            loss = state.resumptions[-1]
            lost = ", ".join(f"rank {rank} {how}" for rank, how in sorted(loss.lost.items()))
            print(f"step {loss.reached}: {lost}; after {loss.seconds:.3f} s on from step {loss.resumed}")
        if group.world_size == 1:
            safe.set()  # nobody would be left
        if args.kill_every and not state.resumptions:
            kill_this_rank_some_day(args.kill_every * group.world_size, safe)
        while state.step < args.steps:
            descend(weights, group)
            time.sleep(0.005)  # as a larger step would take
            state.commit()
        safe.set()
        return group

    group = train()
    alone = group.subgroup([0])
    if alone is None:
        return
    expected = np.zeros(8)
    for _ in range(args.steps):
        descend(expected, alone)
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    print(f"{state.step} steps, at last on {group.world_size} ranks: the weights of a run that loses nobody")


if __name__ == "__main__":
    main()
