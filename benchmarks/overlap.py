"""How much of the gradients' communication time the backward pass hides.

    rankwise run -n 2 benchmarks/overlap.py

A model of some layers trains for a few steps in three ways:

    alone       the computation only, without communication
    after       no overlap: the gradients are reduced after the backward pass
    behind      overlap: each bucket is reduced while the layers before it are still computing

The extra time of "after" and "behind" over "alone" is the exposed communication. It is measured for two kinds of
computation:

    sleeping    a layer's computation is a sleep, as if a device computed: the cores are free for communication. All
                sleeps together are 1.2 times as long as the communication.
    computing   each rank computes matrix products of one sample on one core, the least computation for so many
                gradients, and communication uses the same cores. Overlap can only save fetching the gradients into the
                caches again, so the layers are small, their gradients fit in a core's L2 cache, and each rank's only
                thread reduces them as soon as it has computed them: async_op=False

The steps of all ways are interleaved, so that a noisy machine favours none; the fastest step counts, and the median is
shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import rankwise as rw

WAYS = ("alone", "after", "behind")


class Sleeping:
    """A model as the reducer sees it: gradients, computed one layer after the other, the last one first."""

    layers, width, bucket_mib, async_op = 24, 2048, 25.0, True
    seconds = 0.0  # of a layer's sleep

    def __init__(self, group: rw.Group, layers: int | None, width: int | None) -> None:
        self.group, self.layers, self.width = group, layers or self.layers, width or self.width
        scale, random = np.float32(self.width**-0.5), np.random.default_rng(0)
        shape = (self.width, self.width)
        self.weights = [random.standard_normal(shape, np.float32) * scale for _ in range(self.layers)]
        nbytes = int(self.bucket_mib * 2**20)
        self.reducer = rw.overlap.GradientReducer(self.weights, group, nbytes, async_op=self.async_op)

    def gradients(self, into: list[Any]) -> Iterator[int]:
        """Compute each layer's gradient into its place, and yield the layer."""
        for layer in reversed(range(self.layers)):
            if self.seconds:
                time.sleep(self.seconds)
            yield layer

    def step(self, way: str) -> None:
        views, ready = self.reducer.views, []
        for layer in self.gradients(views):
            if way == "behind":
                self.reducer.mark_ready(layer, views[layer])
            ready.append(layer)
        if way == "after":
            for layer in ready:
                self.reducer.mark_ready(layer, views[layer])
        if way != "alone":
            self.reducer.wait_and_unpack()

    def balance(self) -> None:
        """Make the sleeps together 1.2 times as long as the communication."""
        communication = min(seconds_of(partial(self.step, "after"), self.group) for _ in range(10))
        self.seconds = max(1.2 * communication / self.layers - 60e-6, 100e-6)  # a sleep takes slightly longer


class Computing(Sleeping):
    """Layers of tanh over matrix products, forward and backward, on one sample."""

    layers, width, bucket_mib, async_op = 768, 360, 0.5, False

    def gradients(self, into: list[Any]) -> Iterator[int]:
        values = [np.ones(self.width, np.float32)]
        for weights in self.weights:
            values.append(np.tanh(values[-1] @ weights))
        slope = values[-1]
        for layer in reversed(range(self.layers)):
            slope = slope * (1 - values[layer + 1] ** 2)
            before = self.weights[layer] @ slope
            # Last, so that it is in the cache when it is marked. np.matmul takes five times as long.
            np.multiply(values[layer][:, None], slope, out=into[layer])
            slope = before
            yield layer

    def balance(self) -> None:
        """The computation is what it is."""


def seconds_of(step: Callable[[], None], group: rw.Group) -> float:
    """A step's time, from the moment all ranks begin it until the last one has finished."""
    group.barrier()
    begin = time.perf_counter()
    step()
    return float(group.all_reduce(time.perf_counter() - begin, "max"))


def main() -> None:
    parser = argparse.ArgumentParser(description="How much of the communication is hidden behind the backward pass.")
    parser.add_argument("--layers", type=int, help="layers of either model")
    parser.add_argument("--width", type=int, help="each has width x width float32 parameters")
    parser.add_argument("--steps", type=int, default=24, help="steps of each way")
    args = parser.parse_args()

    group = rw.init()
    if group.rank == 0:
        print(f"{group.world_size} ranks; ms per step: the fastest of {args.steps}, and the median")
        print(f"{'':12}{'alone':>8}{'after':>8}{'behind':>8}{'exposed: after':>16}{'behind':>8}{'ratio':>8}   medians")
    for kind in (Sleeping, Computing):
        model = kind(group, args.layers, args.width)
        model.balance()
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(2 + args.steps):  # the first two warm up
            for way in WAYS:
                seconds = seconds_of(partial(model.step, way), group)
                if turn >= 2:
                    times[way].append(1e3 * seconds)
        alone, after, behind = (min(times[way]) for way in WAYS)
        if group.rank == 0:
            medians = " / ".join(f"{statistics.median(times[way]):.1f}" for way in WAYS)
            exposed, left = after - alone, behind - alone
            ratio = f"{100 * left / exposed:6.0f} %" if exposed > 0 else f"{'-':>8}"
            name = kind.__name__.lower()
            print(f"{name:12}{alone:8.1f}{after:8.1f}{behind:8.1f}{exposed:16.1f}{left:8.1f}{ratio}   {medians}")


if __name__ == "__main__":
    main()
