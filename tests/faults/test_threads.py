"""Several threads of one rank, and many more ranks than cores."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest

from faults.trials import FULL, Trial, fault
from rankwise import Group
from rankwise.contract.types import DType, ReduceOp
from rankwise.testing.cases import OPERATIONS, REDUCTIONS, ROOTED, Case
from rankwise.testing.suite import Status, merged, run_cases

both = pytest.mark.parametrize("backend", ["threads", "shm"])


def at_once(*bodies: object) -> None:
    """Run the bodies in threads; what one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(body: object) -> None:
        try:
            body()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@both
@fault(10, "two threads on one group", few=1, full=60)
def test_two_threads_on_one_group(trial: Trial, backend: str) -> None:
    n, turns = trial.rng.randint(2, 4), trial.rng.randint(20, 100)
    size = trial.rng.choice((1, 100, 50_000))

    def body(group: Group) -> None:
        def reduces() -> None:
            for _ in range(turns):  # the same call in both threads: whichever comes first, the ranks agree
                assert (group.all_reduce(np.ones(size)) == n).all()

        def talks(tag: int) -> None:
            for turn in range(turns):
                group.send(np.full(size, turn), (group.rank + 1) % n, tag)
                assert (group.recv((size,), (group.rank - 1) % n, tag, dtype=np.int64) == turn).all()

        at_once(reduces, reduces, partial(talks, 1), partial(talks, 2))

    trial.run(n, body, backend=backend, timeout=60)


@both
@fault(10, "two groups on two threads", few=1, full=60)
def test_two_groups_on_two_threads(trial: Trial, backend: str) -> None:
    n, turns = trial.rng.randint(2, 4), trial.rng.randint(20, 100)
    sizes = [trial.rng.choice((1, 100, 50_000)) for _ in range(2)]

    def body(group: Group) -> None:
        def works(part: Group, size: int) -> None:
            for turn in range(turns):
                assert (part.all_reduce(np.full(size, turn)) == n * turn).all()
                assert part.broadcast(turn, turn % n) == turn

        parts = [group.dup(), group.split(0, -group.rank)]
        at_once(*(partial(works, part, size) for part, size in zip(parts, sizes, strict=True)))
        for part in parts:
            part.close()

    trial.run(n, body, backend=backend, timeout=60)


@both
@fault(10, "Python goes on while a call waits", few=1, full=20)
def test_the_gil_is_released(trial: Trial, backend: str) -> None:
    late = trial.rng.randrange(2)
    call = trial.rng.choice(["barrier", "recv", "all_reduce", "wait", "split"])

    def body(group: Group) -> int:
        calls = {
            "barrier": group.barrier,
            "recv": lambda: group.recv((1,), late) if group.rank != late else group.send(np.ones(1), 1 - late),
            "all_reduce": lambda: group.all_reduce(np.ones(100_000)),
            "wait": lambda: group.all_reduce(np.ones(3), async_op=True).wait(),
            "split": lambda: group.split(0),
        }
        counted, over = 0, threading.Event()

        def counts() -> None:
            nonlocal counted
            while not over.is_set():
                counted += 1

        counter = threading.Thread(target=counts)
        group.barrier()
        if group.rank == late:
            time.sleep(0.3)
        else:
            counter.start()
        calls[call]()
        over.set()
        if group.rank != late:
            counter.join()
        return counted

    assert trial.run(2, body, backend=backend)[1 - late] > 100


MANY = [("threads", 64), ("shm", 64)] if FULL else [("threads", 24)]


@pytest.mark.parametrize(("backend", "n"), MANY)
@fault(11, "far more ranks than cores", few=1, full=3)
def test_many_ranks(trial: Trial, backend: str, n: int) -> None:
    """Every operation once, at a random size; the conformance suite checks the results."""
    seed = trial.rng.randrange(1 << 30)
    for level, operations in OPERATIONS.items():
        cases = [
            Case(
                operation,
                DType.F32,
                (trial.rng.choice((13, 700, 6_000)),),
                ReduceOp.SUM if operation in REDUCTIONS else None,
                trial.rng.randrange(n) if operation in ROOTED else None,
                seed=seed,
            )
            for operation in (operations if FULL else trial.rng.sample(list(operations), 4))
        ]
        results = merged(trial.run(n, partial(run_cases, level=level, cases=cases), backend=backend, timeout=100))
        assert [f"{r.case}: {r.detail}" for r in results if r.status is not Status.PASS] == []
