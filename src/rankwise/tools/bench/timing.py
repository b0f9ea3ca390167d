"""Times one point after another, with the measurements of all contenders interleaved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from rankwise.tools.bench.cases import DTYPES, OPERATIONS, MeasuredOperation, Times, slowest, summary
from rankwise.tools.bench.workers import Workers, WorkersError

ROUNDS = 4  # in each round every contender is measured once
MOST_BATCHES = 1000  # in a round
BATCH = 200e-6  # seconds that a batch of short calls should take
WARM = 20e-3  # seconds of untimed calls at the beginning of a round, in which cores and caches recover speed
LONG = 1.0  # seconds of a call that needs none of them
BATCH_OVERSUBSCRIBED = 2e-3  # like BATCH, if ranks share cores: each batch begins with a wait for a core


@dataclass
class Contender:
    """A library at a level ('array', 'registered', 'pointer', 'native', 'bound'), with the ranks that run it."""

    name: str
    workers: Workers
    level: str = "array"
    barrier: float = 0.0
    """Seconds that a barrier takes, from which the number of batches is planned."""


@dataclass(frozen=True)
class Measurement:
    """The times of one contender at one point. size: bytes as in cases.py. wrong: bytes; None if not checked."""

    contender: str
    operation: str
    ranks: int
    size: int
    count: int
    iterations: int
    times: Times
    wrong: int | None
    chosen: bool = False
    """For a forced algorithm: whether rankwise would have chosen it at this point."""


@dataclass
class Bench:
    """The contenders of one run with n ranks, and how they are measured.

    seconds: measuring time for each contender at each point. fresh: each call is timed separately, on
    arrays written just before it. failed: called with the name of a contender that is left out from now
    on, and the reason. progress: called with a description of the present step.
    """

    contenders: list[Contender]
    n: int
    cores: int
    memory: int
    dtype: str
    op: str
    seconds: float
    check: bool
    fresh: bool
    failed: Callable[[str, str], None]
    progress: Callable[[str], None]
    algorithms: bool = False
    """All contenders are rankwise: the first as it is, the others with the algorithm of their name forced."""
    skipped: list[str] = field(default_factory=list)
    """Points that were left out, and why."""

    def prepare(self) -> None:
        """Measure the barrier of each contender."""
        for contender in self._living(moves_data=False):
            self.progress(f"{contender.name}: barrier")
            try:
                request = self._request(OPERATIONS["barrier"], 0, contender)
                self._time(contender, request, 1, 3)
                contender.barrier = min(self._time(contender, request, 1, 10))
            except WorkersError as error:
                self._lost(contender, error)

    def counts(self, operation: MeasuredOperation, sizes: Iterable[int]) -> list[int]:
        """The numbers of elements at which to measure the operation. sizes: in bytes, as in cases.py."""
        return sorted({operation.count(size, DTYPES[self.dtype], self.n) for size in sizes})

    def point(self, operation: MeasuredOperation, count: int) -> list[Measurement]:
        """Measure the operation with `count` elements; the results are in the order of the contenders."""
        size = count * DTYPES[self.dtype]
        need = operation.memory(size, self.n) * (2 if self.check else 1)
        if need > 0.8 * self.memory:
            self.skipped.append(f"{operation.name} of {size} bytes: needs {need:.2g} bytes of memory")
            return []
        keep = need * len({id(contender.workers) for contender in self.contenders}) < self.memory / 2
        choice, unable = self._choices(operation, size) if self.algorithms else ("", set())
        plans: dict[str, tuple[int, int, int]] = {}
        fastest: dict[
            str, float
        ] = {}  # the least seconds of a call so far; on a busy machine the first estimate is poor
        times: dict[str, list[float]] = {}
        wrong: dict[str, int] = {}

        def begin(contender: Contender) -> None:
            name = contender.name
            if self.check:
                wrong[name] = self._check(contender, operation, count)
            fastest[name] = self._estimate(contender, operation, count)
            plans[name] = self._plan(contender, fastest[name])
            times[name] = []

        def measure(contender: Contender) -> None:
            request = self._request(operation, count, contender)
            iterations, batches, warm = plans[contender.name]
            calls = [batch / iterations for batch in self._time(contender, request, iterations, batches, warm)]
            times[contender.name] += [call / operation.per_call for call in calls]
            fastest[contender.name] = min(fastest[contender.name], *calls)
            plans[contender.name] = self._plan(contender, fastest[contender.name])

        def end(contender: Contender) -> None:
            if self.check:  # once more, since many calls in a row may have broken something
                wrong[contender.name] += self._check(contender, operation, count)

        for step, what in ((begin, "begins"), *((measure, "") for _ in range(ROUNDS)), (end, "ends")):
            for contender in self._living(operation.has_bytes, unable):
                self.progress(f"{contender.name} {what}".rstrip())
                try:
                    step(contender)
                    if not keep or step is end:
                        contender.workers.ask(do="drop")
                except WorkersError as error:
                    self._lost(contender, error)
        return [
            Measurement(
                contender.name,
                operation.name,
                self.n,
                size,
                count,
                plans[contender.name][0],
                summary(times[contender.name]),
                wrong.get(contender.name),
                chosen=contender.name == choice,
            )
            for contender in self._living(operation.has_bytes, unable)
        ]

    def _living(self, moves_data: bool, unable: Set[str] = frozenset()) -> list[Contender]:
        return [
            one
            for one in self.contenders
            if one.workers.alive and (moves_data or one.level != "bound") and one.name not in unable
        ]

    def _choices(self, operation: MeasuredOperation, size: int) -> tuple[str, set[str]]:
        """What rankwise chooses on private arrays, and which contenders cannot run their algorithm at this size."""
        tried: dict[str, list[str]] = {}
        for contender in self._living(moves_data=True):
            answers = contender.workers.ask(do="algorithms", operation=operation.name, bytes=size)
            tried[contender.name] = answers[0]["algorithms"]
        (_, first), *forced = tried.items()
        choice = next((name for name in first if not name.startswith("registered")), "")
        return choice, {name for name, algorithms in forced if algorithms != [name]}

    def _lost(self, contender: Contender, error: WorkersError) -> None:
        for other in self.contenders:
            if other.workers is contender.workers:
                self.failed(other.name, str(error))
        contender.workers.close()

    def _request(self, operation: MeasuredOperation, count: int, contender: Contender) -> dict[str, object]:
        return {
            "level": contender.level,
            "operation": operation.asked,
            "count": count,
            "dtype": self.dtype,
            "op": self.op,
            "fresh": self.fresh,
        }

    def _time(
        self, contender: Contender, request: dict[str, object], iterations: int, batches: int, warm: int = 1
    ) -> Sequence[float]:
        answers = contender.workers.ask(**request, do="time", iterations=iterations, batches=batches, warm=warm)
        return slowest([answer["seconds"] for answer in answers])

    def _check(self, contender: Contender, operation: MeasuredOperation, count: int) -> int:
        request = self._request(operation, count, contender)
        return sum(answer["wrong"] for answer in contender.workers.ask(**request, do="check"))

    def _estimate(self, contender: Contender, operation: MeasuredOperation, count: int) -> float:
        """A rough estimate of the seconds that a call takes."""
        request = self._request(operation, count, contender)
        call = min(self._time(contender, request, 1, 2))
        if self.fresh or call >= BATCH:
            return call
        return min(self._time(contender, request, 20, 5)) / 20

    def _plan(self, contender: Contender, call: float) -> tuple[int, int, int]:
        """How many calls in a batch, timed batches and warm-up batches make a round, if a call takes `call` seconds."""
        batch = BATCH_OVERSUBSCRIBED if self.n > self.cores else BATCH
        alone = self.fresh or call >= batch / 2
        iterations = 1 if alone else max(1, round(batch / call))
        each, round_time = iterations * call + contender.barrier, self.seconds / ROUNDS
        return (
            iterations,
            max(1, min(MOST_BATCHES, int(round_time / each))),
            max(1, round(min(WARM, round_time) / each)) if call < LONG else 0,
        )
