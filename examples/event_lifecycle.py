"""The life of an event in seven steps: communication that overlaps computation and blocks no thread.

    python examples/event_lifecycle.py

starts two ranks. Each computes a gradient on its own stream; the gradients are summed over the ranks,
and the stream uses the sum. The steps are the operations that every backend with streams has, on
integer handles; `group.stream` and `rw.overlap.Event` do the same in less code (docs/reference/streams.md). The
program prints when each step happened on each rank, and what that proves.
"""

from __future__ import annotations

import threading
import time

import numpy as np

import rankwise as rw

SECONDS = (0.05, 0.15)  # how long each rank computes its gradient

Line = tuple[float, str, str]  # milliseconds, where, what


def rank() -> tuple[list[Line], dict[str, bool]]:
    """What happened on this rank, in order, and what that proves."""
    group = rw.init()
    ops = group.stream.ops
    gradient = np.zeros(1_000_000, np.float32)
    all_is_said = threading.Event()
    lines: list[Line] = []
    used: list[float] = []

    def note(where: str, what: str) -> None:
        lines.append(((time.perf_counter() - start) * 1e3, where, what))

    def backward() -> None:
        all_is_said.wait(60)  # if one of the seven steps waited for the gradient, this would be a deadlock
        note("compute", "the gradient begins")
        time.sleep(SECONDS[group.rank])
        gradient[:] = group.rank + 1
        note("compute", f"the gradient is there: {gradient[0]:g}")

    def step() -> None:
        used.append(float(gradient[-1]))
        note("compute", f"the sum is used: {used[0]:g}")

    with rw.overlap.Stream() as compute:
        group.barrier()
        start = time.perf_counter()
        compute.submit(backward)

        ready, reduced = ops.create_event(), ops.create_event()
        note("program", "1  create_event, twice: ready, reduced")
        ops.record_on_stream(ready, compute.handle)
        note("program", "2  record_on_stream(ready, compute)")
        ops.comm_stream_wait_event(ready)
        note("program", "3  comm_stream_wait_event(ready)")
        reducing = group.all_reduce(gradient, async_op=True)
        note("program", "4  all_reduce, on the communication stream")
        ops.record_on_comm_stream(reduced)
        note("program", "5  record_on_comm_stream(reduced)")
        ops.stream_wait_event(compute.handle, reduced)
        note("program", "6  stream_wait_event(compute, reduced)")
        stepping = compute.submit(step)
        ops.destroy_event(ready)
        ops.destroy_event(reduced)
        note("program", "7  destroy_event, twice")

        nothing_yet = not reducing.done() and not stepping.done() and gradient[0] == 0
        all_is_said.set()
        stepping.wait()
        note("program", "has waited for the use of the sum")

    order = [what for _, _, what in lines]
    return lines, {
        "1-7: the program waited for nothing, all is queued": bool(nothing_yet),
        "2,3: the all_reduce waited for the gradients of both ranks": gradient[0] == sum(range(1, 3)),
        "5,6: the use waited for the all_reduce": reducing.done() and used == [3.0],
        "7:   the events, destroyed before they were reached, were waited for": order.index("7  destroy_event, twice")
        < order.index("the sum is used: 3"),
    }


def main() -> None:
    for number, (lines, proofs) in enumerate(rw.spawn(rank, 2)):
        print(f"rank {number}")
        for when, where, what in lines:
            print(f"  {when:7.2f} ms  {where}  {what}")
        for what, holds in proofs.items():
            print(f"  {'yes' if holds else 'NO '}  {what}")
        print()
        assert all(proofs.values())


if __name__ == "__main__":
    main()
