"""Timing one point after the other, every contender in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankwise.tools.bench.cases import DTYPES, Operation, Times, slowest, summary
from rankwise.tools.bench.workers import Crew, CrewError

ROUNDS = 4  # turns of each contender at a point
MOST_BATCHES = 1000  # in a turn
BATCH = 200e-6  # seconds that a batch of short calls shall take
WARM = 20e-3  # seconds of calls before those that a turn times: in them cores and caches come back to speed
BATCH_CROWDED = 2e-3  # the same where ranks share cores: each batch begins with the wait for a core


@dataclass
class Contender:
    """A library at a level ('array', 'registered', 'pointer', 'native', 'bound'), with the ranks that run it."""

    name: str
    crew: Crew
    level: str = "array"
    barrier: float = 0.0
    """Seconds of a barrier, to plan with."""


@dataclass(frozen=True)
class Result:
    """What one contender did at one point. size: bytes as in cases.py. wrong: bytes, None where not checked."""

    contender: str
    operation: str
    ranks: int
    size: int
    count: int
    iterations: int
    times: Times
    wrong: int | None


@dataclass
class Bench:
    """The contenders of one run with n ranks, and how they are measured.

    seconds: measuring time of each contender at each point. fresh: each call by itself, on arrays that
    were just written. failed: called with a contender's name
    and why it is left out from now on. progress: called with what is being done.
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
    skipped: list[str] = field(default_factory=list)
    """Points that were left out, and why."""

    def prepare(self) -> None:
        """Find what a barrier takes each contender."""
        for contender in self._living(moves_data=False):
            self.progress(f"{contender.name}: barrier")
            try:
                request = self._request("barrier", 0, contender)
                self._time(contender, request, 1, 3)
                contender.barrier = min(self._time(contender, request, 1, 10))
            except CrewError as error:
                self._lost(contender, error)

    def point(self, operation: Operation, count: int) -> list[Result]:
        """Measure the operation with `count` elements; the results, in the contenders' order."""
        size = count * DTYPES[self.dtype]
        need = operation.memory(size, self.n) * (2 if self.check else 1)
        if need > 0.8 * self.memory:
            self.skipped.append(f"{operation.name} of {size} bytes: needs {need:.2g} bytes of memory")
            return []
        keep = need * len({id(contender.crew) for contender in self.contenders}) < self.memory / 2
        plans: dict[str, tuple[int, int, int]] = {}
        fastest: dict[str, float] = {}  # seconds of a call, the least seen; on a busy machine the first guess is poor
        times: dict[str, list[float]] = {}
        wrong: dict[str, int] = {}
        half = 0.5 if operation.name == "send_recv" else 1.0

        def begin(contender: Contender) -> None:
            name = contender.name
            if self.check:
                wrong[name] = self._check(contender, operation, count)
            fastest[name] = self._estimate(contender, operation, count)
            plans[name] = self._plan(contender, fastest[name])
            times[name] = []

        def turn(contender: Contender) -> None:
            request = self._request(operation.name, count, contender)
            iterations, batches, warm = plans[contender.name]
            calls = [batch / iterations for batch in self._time(contender, request, iterations, batches, warm)]
            times[contender.name] += [half * call for call in calls]
            fastest[contender.name] = min(fastest[contender.name], *calls)
            plans[contender.name] = self._plan(contender, fastest[contender.name])

        def end(contender: Contender) -> None:
            if self.check:  # once more, for what many calls in a row may have upset
                wrong[contender.name] += self._check(contender, operation, count)

        for step, what in ((begin, "begins"), *((turn, "") for _ in range(ROUNDS)), (end, "ends")):
            for contender in self._living(operation.has_bytes):
                self.progress(f"{contender.name} {what}".rstrip())
                try:
                    step(contender)
                    if not keep or step is end:
                        contender.crew.ask(do="drop")
                except CrewError as error:
                    self._lost(contender, error)
        return [
            Result(
                contender.name,
                operation.name,
                self.n,
                size,
                count,
                plans[contender.name][0],
                summary(times[contender.name]),
                wrong.get(contender.name),
            )
            for contender in self._living(operation.has_bytes)
        ]

    def _living(self, moves_data: bool) -> list[Contender]:
        return [one for one in self.contenders if one.crew.alive and (moves_data or one.level != "bound")]

    def _lost(self, contender: Contender, error: CrewError) -> None:
        for other in self.contenders:
            if other.crew is contender.crew:
                self.failed(other.name, str(error))
        contender.crew.close()

    def _request(self, operation: str, count: int, contender: Contender) -> dict[str, object]:
        return {
            "level": contender.level,
            "operation": operation,
            "count": count,
            "dtype": self.dtype,
            "op": self.op,
            "fresh": self.fresh,
        }

    def _time(
        self, contender: Contender, request: dict[str, object], iterations: int, batches: int, warm: int = 1
    ) -> Sequence[float]:
        answers = contender.crew.ask(**request, do="time", iterations=iterations, batches=batches, warm=warm)
        return slowest([answer["seconds"] for answer in answers])

    def _check(self, contender: Contender, operation: Operation, count: int) -> int:
        request = self._request(operation.name, count, contender)
        return sum(answer["wrong"] for answer in contender.crew.ask(**request, do="check"))

    def _estimate(self, contender: Contender, operation: Operation, count: int) -> float:
        """Seconds of a call, roughly."""
        request = self._request(operation.name, count, contender)
        call = min(self._time(contender, request, 1, 2))
        if self.fresh or call >= BATCH:
            return call
        return min(self._time(contender, request, 20, 5)) / 20

    def _plan(self, contender: Contender, call: float) -> tuple[int, int, int]:
        """Calls in a batch, and batches in a turn and before it, where a call takes `call` seconds."""
        batch = BATCH_CROWDED if self.n > self.cores else BATCH
        alone = self.fresh or call >= batch / 2
        iterations = 1 if alone else max(1, round(batch / call))
        each, turn = iterations * call + contender.barrier, self.seconds / ROUNDS
        return iterations, max(1, min(MOST_BATCHES, int(turn / each))), max(1, round(min(WARM, turn) / each))
