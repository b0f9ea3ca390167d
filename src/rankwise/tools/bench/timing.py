"""Times one point after another, with the measurements of all contenders interleaved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from rankwise.contract.ranks import count_of_ranks
from rankwise.tools.bench.rank import Case
from rankwise.tools.bench.report import Machine, Progress, Row, size_name
from rankwise.tools.bench.workers import Workers, WorkersError

ROUNDS = 4  # in each round every contender is measured once
MOST_BATCHES = 1000  # in a round
BATCH = 200e-6  # seconds that a batch of short calls should take
BATCH_OVERSUBSCRIBED = 2e-3  # like BATCH, if ranks share cores: each batch begins with a wait for a core
WARM = 20e-3  # seconds of untimed calls at the beginning of a round, in which cores and caches recover speed
LONG = 1.0  # seconds of a call that needs none of them


@dataclass
class Contender:
    """A library with the ranks that run it, and the memory of its arrays: "numpy", "registered" or "torch"."""

    name: str
    workers: Workers
    memory: str = "numpy"

    def can(self, case: Case) -> bool:
        arrays = self.memory == "numpy" or not case.at
        return self.workers.alive and arrays and getattr(case, self.workers.launch.name) is not None


@dataclass
class Bench:
    """The contenders of one run with n ranks, and how they are measured. The first is rankwise, without which it ends.

    seconds: measuring time for each contender at each point. fresh: each call is timed separately, on arrays written
    just before it. algorithms: all contenders are rankwise, the first as it is, the others with the algorithm of their
    name forced. started: how many collectives are started before they are waited for; 0 for blocking calls.
    """

    contenders: list[Contender]
    n: int
    machine: Machine
    progress: Progress
    dtype: str
    seconds: float
    fresh: bool
    algorithms: bool = False
    started: int = 0

    def points(self, case: Case, sizes: Sequence[int]) -> list[tuple[str, int]]:
        """What the case is measured with, and the elements of the array that each rank passes, 0 for none."""
        if case.at:
            return [(at, 0) for at in case.at]
        item = np.dtype(self.dtype).itemsize
        counts = sorted({case.count(size, item, self.n) for size in sizes})
        return [(size_name(count * item), count) for count in counts]

    def point(self, case: Case, at: str, count: int) -> list[Row]:
        """Measure a point; the rows are in the order of the contenders."""
        size = count * np.dtype(self.dtype).itemsize
        contenders = [contender for contender in self.contenders if contender.can(case)]
        at_once = max(1, self.started)
        need = len(contenders) * self.n * (size + case.total(size, self.n)) * at_once
        if need > 0.8 * self.machine.memory:
            self.progress.leave_out(f"{case.name} of {at} bytes", f"needs {need / 2**30:.1f} GiB of memory")
            return []
        choice, unable = self._choices(case, size) if self.algorithms else ("", set())
        contenders = [contender for contender in contenders if contender.name not in unable]
        request = {"case": case.name, "at": at, "count": count, "dtype": self.dtype, "started": self.started}
        calls: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for _ in range(1 + ROUNDS):
            for contender in contenders:
                if not contender.workers.alive:
                    continue
                self.progress.show(f"{case.name} {at}, {count_of_ranks(self.n)}: {contender.name}")
                try:
                    calls[contender.name] += self._round(contender, request, min(calls[contender.name], default=None))
                except WorkersError as error:
                    self._lost(contender, error)
        rows = []
        for contender in contenders:
            if contender.workers.alive:
                times = sorted(
                    1e6 * call / (case.per_call * at_once) for call in calls[contender.name][1:]
                )  # the first is an estimate
                middle, p99 = median(times), times[math.ceil(0.99 * len(times)) - 1]
                bandwidth = case.bus_bandwidth(size, self.n, middle / 1e6) if size else None
                chosen = contender.name == choice
                rows.append(Row(contender.name, case.name, self.n, at, size, middle, times[0], p99, bandwidth, chosen))
        return rows

    def _choices(self, case: Case, size: int) -> tuple[str, set[str]]:
        """What rankwise chooses on private arrays, and which contenders cannot run their algorithm at this size."""
        ours, *forced = [contender for contender in self.contenders if contender.workers.alive]
        request = {"do": "algorithms", "operation": case.name, "size": size}
        first = ours.workers.ask(**request)[0]["algorithms"]
        choice = next((name for name in first if not name.startswith("registered")), "")
        return choice, {
            contender.name
            for contender in forced
            if contender.workers.ask(**request)[0]["algorithms"] != [contender.name]
        }

    def _lost(self, contender: Contender, error: WorkersError) -> None:
        contender.workers.close()
        if contender.workers is self.contenders[0].workers:
            raise error
        self.progress.leave_out(contender.name, str(error))

    def _round(self, contender: Contender, point: dict[str, object], fastest: float | None) -> list[float]:
        """The seconds of a call in each batch. fastest: of a call so far; None for a first, rough estimate."""

        def time(iterations: int, batches: int, warm: int) -> list[float]:
            request = {**point, "memory": contender.memory, "fresh": self.fresh, "iterations": iterations}
            answers = contender.workers.ask(do="time", batches=batches + warm, **request)
            by_rank = [answer["seconds"] for answer in answers]
            return [max(batch) / iterations for batch in zip(*by_rank, strict=True)][warm:]

        if fastest is None:
            call = min(time(1, 2, 1))
            return [call if self.fresh or call >= BATCH else min(time(20, 5, 1))]
        batch = BATCH_OVERSUBSCRIBED if self.n > self.machine.cores else BATCH
        alone = self.fresh or fastest >= batch / 2
        iterations = 1 if alone else max(1, round(batch / fastest))
        each, round_time = iterations * fastest, self.seconds / ROUNDS
        batches, warm = (max(1, min(MOST_BATCHES, int(s / each))) for s in (round_time, min(WARM, round_time)))
        return time(iterations, batches, warm if fastest < LONG else 0)
