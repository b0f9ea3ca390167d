"""Closing, however it happens and in any state, is bounded, logs what was lost, and is silent otherwise."""

from __future__ import annotations

import gc
import logging
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from faults.trials import Trial, fault
from faults.workers import Workers
from rankwise import ClosedError, Group, MismatchError, RankwiseError
from rankwise._native import SegmentView

both = pytest.mark.parametrize("backend", ["threads", "shm"])

PENDING = ["nothing", "irecv", "operation", "busy thread", "isend", "function", "thread", "cycle"]


@pytest.mark.slow
@pytest.mark.parametrize("state", PENDING)
@fault(8, "the interpreter ends, pending", few=1, full=15)
def test_exit(trial: Trial, state: str) -> None:
    n = trial.rng.randint(2, 4)
    with Workers(trial, n, "leave_pending", state) as workers:
        assert workers.end() == 0
        ended = time.monotonic()
        trial.took(ended - max(report["at"] for report in workers.all("leaves").values()))
        assert ended - min(report["at"] for report in workers.all("leaves").values()) < 10
        lines = workers.stderr.splitlines()
        assert all(line.startswith("closing rank ") for line in lines), workers.stderr
        assert len(lines) <= n
        if state in ("nothing", "cycle"):
            assert lines == []
        elif state in ("irecv", "operation", "function"):
            # Else it may be that nothing was pending any more: threads between two operations or told
            # that a peer had left, messages that a peer took in while it ended.
            assert lines


STATES = ["idle", "done", "receive", "send", "operation", "function", "thread", "failed"]
WAYS = ["close", "twice", "with", "del", "by another thread", "by two threads"]


@pytest.mark.slow
@both
@fault(8, "closed in any way and state", few=3, full=200)
def test_close(trial: Trial, backend: str) -> None:
    n, limit = trial.rng.randint(2, 3), trial.rng.uniform(0.05, 0.3)
    state, way = trial.rng.choice(STATES), trial.rng.choice(WAYS)

    def prepare(part: Group) -> list[threading.Thread]:
        """Bring the group into its state; the threads that its closing ends."""
        peer = (part.rank + 1) % n
        if state == "done":
            part.all_reduce(np.ones(9), async_op=True).wait()
        elif state == "receive":
            part.irecv((3,), peer)
        elif state == "send":
            part.isend(np.ones(1_000_000), peer)
        elif state == "operation" and part.rank == 0:
            part.all_reduce(np.ones(3), async_op=True)
        elif state == "function":
            part.all_reduce(np.ones(3), lambda a, b: time.sleep(0.7), async_op=True)
        elif state == "failed":
            with suppress(MismatchError):
                part.all_reduce(np.ones(1 + part.rank))
        elif state == "thread" and part.rank == 0:

            def blocked(comm: object = part.comm) -> None:
                with suppress(RankwiseError):
                    comm.barrier()  # type: ignore[attr-defined]

            thread = threading.Thread(target=blocked)
            thread.start()
            view = SegmentView(part.comm.shortcuts.segment.fd)  # type: ignore[attr-defined]
            while not view.state(part.rank).description.startswith("in barrier "):
                time.sleep(0.001)
            return [thread]
        return []

    def close(part: Group) -> None:
        if way == "with":
            with part:
                pass
        elif way == "del":
            part.comm.close(limit)  # the works under way keep the group, which goes with them
        elif way.startswith("by"):
            closers = [threading.Thread(target=part.close, args=(limit,)) for _ in range(1 + ("two" in way))]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join()
        else:
            for _ in range(1 + (way == "twice")):
                part.close(limit)

    def body(group: Group) -> tuple[float, list[tuple[str, str]]]:
        told: list[tuple[str, str]] = []
        handler = logging.Handler()
        handler.emit = lambda record: told.append((record.name, record.getMessage()))  # type: ignore[method-assign]
        mark = f"rank {group.rank} of"
        logging.getLogger("rankwise").addHandler(handler)
        try:
            part = group.dup()
            threads = prepare(part)
            group.barrier()
            begin = time.monotonic()
            close(part)
            took = time.monotonic() - begin
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()
            with pytest.raises(ClosedError):
                part.barrier()
            del part
            gc.collect()
            assert group.all_reduce(1) == n, "the group it was made from was harmed"
        finally:
            logging.getLogger("rankwise").removeHandler(handler)
        return took, [(name, text) for name, text in told if mark in text]

    results = trial.run(n, body, backend=backend)
    print(state, way, results)
    trial.took(max(took for took, _ in results))
    for took, told in results:
        assert took < 5
        assert all(name == "rankwise" and text.startswith("closing rank ") for name, text in told)
        assert len(told) <= 1
        if state in ("idle", "done", "failed"):
            assert told == []
    if state in ("operation", "receive"):
        assert any(told for _, told in results)
