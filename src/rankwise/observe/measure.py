"""`rankwise.trace.measure`: how much this process communicates in a block of the program, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from rankwise._native import begin_measurement, end_measurement, seconds_per_tick, totals
from rankwise.contract import measuring
from rankwise.system.texts import amount, duration


@dataclass(frozen=True)
class OperationTotals:
    """The totals of all operations of one name.

    Attributes:
        count: how many have ended.
        seconds: how long they took.
        waited: how many of these seconds they spent waiting for other ranks.
        bytes: the size of this rank's arguments.

    Example:
        >>> with rw.trace.measure() as m:
        ...     x = group.all_gather(np.ones(3))
        >>> done = m.by_operation["all_gather"]
        >>> done.count, done.bytes, 0 <= done.waited <= done.seconds
        (1, 24, True)
    """

    count: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    bytes: int = 0


class measure:
    """Measures the communication of this process while a `with` block runs. str() returns a table.

    Every operation that ends within the block is counted, on any group and in any thread of the process; if several
    ranks are threads of it, the operations of all of them are. Measurements may be nested or overlap. Within the block,
    the attributes include what has ended so far. Operations on objects, vector collectives and reductions with a custom
    `op` consist of simpler operations, which are counted instead. The seconds of an asynchronous collective are those
    in which it ran, even if the program computed meanwhile; the seconds of a message that isend or irecv began are
    those in which the program waited for it.

    Over shared memory, a wait is counted if it takes longer than about a microsecond. Over other backends, an operation
    does not know how long it waited, so all of its time counts as waiting, and a message is counted when it starts, not
    when it ends. Over nccl, operations only start the device's work, and the operation `sync` waits for it. A backend
    of another package that does not derive from rankwise's classes counts nothing.

    Example:
        >>> with rw.trace.measure() as m:
        ...     total = group.all_reduce(np.ones(1000))
        ...     group.barrier()
        >>> m.by_operation["all_reduce"].count, m.moved, 0 <= m.waited <= m.elapsed
        (1, 8000, True)
    """

    def __init__(self) -> None:
        self._before: dict[str, list[int]] = {}
        self._done: dict[str, OperationTotals] | None = {}  # None while it is in progress
        self._began = self._ended = 0.0

    def __enter__(self) -> measure:
        if self._done is None:
            raise RuntimeError("this measurement is in progress already; create another one with rw.trace.measure()")
        measuring.change(1)
        begin_measurement()
        self._before, self._done = {name: before for name, *before in totals()}, None
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.perf_counter()
        self._done = self._done_so_far()
        end_measurement()
        measuring.change(-1)

    def _done_so_far(self) -> dict[str, OperationTotals]:
        second = seconds_per_tick()
        counts = []
        for name, *now in totals():
            before = self._before.get(name, [0, 0, 0, 0])
            count, ticks, waited, nbytes = (a - b for a, b in zip(now, before, strict=True))
            if count or ticks or nbytes:
                counts.append((name, OperationTotals(count, ticks * second, waited * second, nbytes)))
        return dict(sorted(counts, key=lambda item: -item[1].seconds))

    @property
    def elapsed(self) -> float:
        """How many seconds the block took, or has taken so far."""
        return (time.perf_counter() if self._done is None else self._ended) - self._began

    @property
    def by_operation(self) -> dict[str, OperationTotals]:
        """The OperationTotals of each operation, by its name; the operation that took longest comes first."""
        return self._done_so_far() if self._done is None else self._done

    @property
    def waited(self) -> float:
        """How many seconds the operations waited for other ranks: the sum of their `waited`."""
        return _sum(self.by_operation.values()).waited

    @property
    def moved(self) -> int:
        """The size in bytes of this rank's arguments: the sum of the operations' `bytes`."""
        return _sum(self.by_operation.values()).bytes

    def __repr__(self) -> str:
        total = _sum(self.by_operation.values())
        return f"<measure: {total.count} operations in {self.elapsed:.3g} s, {total.waited:.3g} s waited>"

    def __str__(self) -> str:
        by_operation, elapsed = self.by_operation, self.elapsed
        total = _sum(by_operation.values())
        lines = [f"{'operation':<16} {'count':>11} {'time':>11} {'waited':>11} {'moved':>11}"]
        for name, done in (*by_operation.items(), ("total", total)):
            cells = (f"{done.count}", duration(done.seconds), duration(done.waited), amount(done.bytes))
            lines.append(f"{name:<16} " + " ".join(f"{cell:>11}" for cell in cells))
        share = total.waited / elapsed if elapsed else 0.0
        lines.append(f"in {duration(elapsed)}, of which the operations waited {share:.0%}")
        return "\n".join(lines)


def _sum(parts: Iterable[OperationTotals]) -> OperationTotals:
    each = list(parts)
    return OperationTotals(
        sum(t.count for t in each),
        sum(t.seconds for t in each),
        sum(t.waited for t in each),
        sum(t.bytes for t in each),
    )
