"""Any mix of blocking calls and Works, over any groups, waited for in any order, gives the same as blocking calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Group, wait_all
from rankwise.testing import run_ranks

CALLS: dict[str, Callable[..., Any]] = {
    "all_reduce": lambda group, x, **how: group.all_reduce(x, **how),
    "function": lambda group, x, **how: group.all_reduce(x, lambda a, b: 2 * a + b, **how),
    "broadcast": lambda group, x, **how: group.broadcast(x, group.world_size - 1, **how),
    "all_gather": lambda group, x, **how: group.all_gather(x, **how),
    "all_gather_v": lambda group, x, **how: group.all_gather_v(x[: group.rank], **how),
    "scatter": lambda group, x, **how: group.scatter(x if group.rank == 0 else None, **how),
    "reduce_scatter": lambda group, x, **how: group.reduce_scatter(x, "max", **how),
    "all_to_all": lambda group, x, **how: group.all_to_all(x, **how),
    "scan": lambda group, x, **how: group.scan(x, **how),
    "objects": lambda group, x, **how: group.all_gather_object((group.rank, x), **how),
    "barrier": lambda group, x, **how: group.barrier(**how),
}


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int, bool]], int]:
    """How many ranks; the calls: name, which of three groups, length, whether as a Work; a seed for the waits."""
    step = st.tuples(st.sampled_from(sorted(CALLS)), st.integers(0, 2), st.integers(0, 40), st.booleans())
    return draw(st.integers(1, 4)), draw(st.lists(step, max_size=15)), draw(st.integers(0, 99))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@settings(deadline=None, max_examples=40)
@given(schedules())
def test_works_give_the_results_of_blocking_calls(schedule: tuple[int, list[tuple[str, int, int, bool]], int]) -> None:
    n, steps, seed = schedule

    def ranks(group: Group) -> None:
        halves, turned = group.split(group.rank % 2), group.split(0, -group.rank)
        assert halves is not None
        assert turned is not None
        groups = (group, halves, turned)

        def x(number: int, length: int) -> Any:
            return (np.arange(length) * 7 + 31 * group.rank + number) % 101

        wanted = [plain(CALLS[name](groups[g], x(i, size))) for i, (name, g, size, _) in enumerate(steps)]
        rng = np.random.default_rng((seed, group.rank))  # each rank waits in an order of its own
        got: dict[int, Any] = {}
        works: dict[int, Any] = {}
        for i, (name, g, size, as_work) in enumerate(steps):
            if as_work:
                works[i] = CALLS[name](groups[g], x(i, size), async_op=True)
            else:
                got[i] = CALLS[name](groups[g], x(i, size))
            for waited in [i for i in works if rng.random() < 0.3 and works[i].done()]:
                got[waited] = works.pop(waited).wait()
        order = [int(i) for i in rng.permutation(list(works))]
        got.update(zip(order, wait_all([works[i] for i in order]), strict=True))
        assert [plain(got[i]) for i in range(len(steps))] == wanted

    run_ranks(ranks, n)
