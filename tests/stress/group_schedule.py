"""Many groups, used by many threads at once, within pretended hosts and across them, on a schedule made from a seed.

    python tests/stress/group_schedule.py own|rankwise|gloo HOSTS RANKS THREADS ROUNDS SEED

HOSTS times RANKS processes run the schedule through the own interface, or through torch.distributed with this backend.
In each round every thread has groups of its own, of random ranks. It starts operations on them, waits for those in
another order or has another thread wait, and compares each result with NumPy's. What the ranks call in one thread
has one order; between the threads there is none. All threads of a rank also use one group together. They wait for what
they start there only when they have started everything else: a thread that waits earlier for the other threads of its
rank may keep another rank's thread from going on, and so all of them. Prints how many operations were checked, and on
how many groups.
"""

from __future__ import annotations

import functools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rankwise as rw

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "backends"))
from pretended_hosts import PretendedHosts, RankFailed

GROUPS, STEPS, IN_FLIGHT = 5, 60, 8  # of a thread in a round
SOON = 100.0  # seconds within which anything must end
SPLIT = ("scatter", "reduce_scatter", "all_to_all")
NAMES = (*SPLIT, "all_reduce", "all_reduce", "reduce", "broadcast", "all_gather", "gather", "barrier", "exchange")
OPS: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}
TORCH_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

Wait = Callable[[], Any]  # returns the result, an array or None


@dataclass(frozen=True)
class Step:
    """An operation. count: elements for each rank. later: whether it is started only."""

    group: int
    name: str
    count: int
    dtype: str
    op: str
    root: int
    later: bool
    seed: int

    def given(self, member: int, size: int) -> np.ndarray:
        """The array of a member. Its numbers are small enough that sums of them are exact in every dtype."""
        count = self.count * size if self.name in SPLIT else self.count
        return np.random.default_rng([self.seed, member]).integers(0, 9, count).astype(self.dtype)

    def expected(self, me: int, size: int) -> Any:
        xs = np.stack([self.given(member, size) for member in range(size)])
        mine = slice(me * self.count, (me + 1) * self.count)
        match self.name:
            case "all_reduce" | "reduce" | "reduce_scatter":
                reduced = OPS[self.op](xs, 0).astype(self.dtype)
                if self.name == "reduce_scatter":
                    return reduced[mine]
                return reduced if self.name == "all_reduce" or me == self.root else None
            case "broadcast":
                return xs[self.root]
            case "all_gather":
                return xs
            case "gather":
                return xs if me == self.root else None
            case "scatter":
                return xs[self.root][mine]
            case "all_to_all":
                return xs[:, mine].reshape(-1)
            case "exchange":
                return xs[me - 1]
        return None


def schedule(rng: random.Random, hosts: int, ranks: int) -> tuple[list[list[int]], list[Step]]:
    """The members of a thread's groups in one round, and what it calls on them."""
    world = range(hosts * ranks)
    groups = []
    for _ in range(GROUPS):
        host, size = rng.randrange(hosts), rng.randint(2, len(world))
        within = list(range(host * ranks, (host + 1) * ranks))
        one_of_each = [host * ranks + rng.randrange(ranks) for host in range(hosts)]
        groups.append(
            rng.choice([list(world), within, one_of_each, sorted(rng.sample(world, size))])
        )  # sorted, as torch numbers them
    steps = []
    for _ in range(STEPS):
        number = rng.randrange(GROUPS)
        count = max(1, (1 << rng.choice([0, 2, 5, 8, 11, 14, 17])) + rng.randint(-2, 2))
        steps.append(
            Step(
                number,
                rng.choice(NAMES),
                min(count, 1 << 14) if len(groups[number]) > 4 else count,
                rng.choice(["float32", "float64", "int32", "int64", "float16"]),
                rng.choice(list(OPS)),
                rng.randrange(len(groups[number])),
                rng.random() < 0.7,
                rng.randrange(1 << 30),
            )
        )
    return groups, steps


# ---- the two interfaces ----


class Own:
    """rankwise's own groups, each of which the thread that uses it makes and closes."""

    def __init__(self, threads: int) -> None:
        self.world = rw.init(timeout=SOON)
        self.rank = self.world.rank
        self.shared = self.world.dup()
        self._of_threads = [self.world.dup() for _ in range(threads)]

    def prepare(self, thread: int, members: list[list[int]]) -> Callable[[], list[Any]]:
        return lambda: [self._of_threads[thread].subgroup(each) for each in members]

    def end_round(self) -> None:
        """Nothing is left: each thread has closed its groups."""

    def leave(self, groups: list[Any]) -> None:
        for group in filter(None, groups):
            group.close()

    def close(self) -> None:
        self.world.close()

    def call(self, group: Any, step: Step, me: int, size: int, x: np.ndarray) -> Wait:
        later = {"async_op": step.later}
        match step.name:
            case "all_reduce" | "reduce_scatter":
                made = getattr(group, step.name)(x, step.op, **later)
            case "reduce":
                made = group.reduce(x, step.root, step.op, **later)
            case "broadcast" | "gather":
                made = getattr(group, step.name)(x, step.root, **later)
            case "scatter":
                made = group.scatter(x if me == step.root else None, step.root, **later)
            case "exchange":
                sending = group.isend(x, (me + 1) % size, step.seed)
                receiving = group.irecv(x.shape, (me - 1) % size, step.seed, dtype=x.dtype)
                return lambda: (sending.wait(), receiving.wait())[1]
            case "barrier":
                made = group.barrier(**later)
            case _:
                made = getattr(group, step.name)(x, **later)
        return made.wait if step.later else lambda: made

    def sum_of(self, x: np.ndarray, later: bool) -> Wait:
        made: Any = self.shared.all_reduce(x, async_op=later)
        return made.wait if later else lambda: made


class Torch:
    """torch's groups, which one thread makes."""

    def __init__(self, backend: str) -> None:
        dist.init_process_group(backend)
        self.rank = dist.get_rank()
        self.shared = dist.new_group()
        self._made: list[Any] = []

    def prepare(self, thread: int, members: list[list[int]]) -> Callable[[], list[Any]]:
        made = [dist.new_group(each) for each in members]
        self._made += [group for group, each in zip(made, members, strict=True) if self.rank in each]
        return lambda: made

    def leave(self, groups: list[Any]) -> None:
        """They are destroyed when all threads have left theirs."""

    def end_round(self) -> None:
        while self._made:
            dist.destroy_process_group(self._made.pop())

    def close(self) -> None:
        dist.destroy_process_group()

    def call(self, group: Any, step: Step, me: int, size: int, x: np.ndarray) -> Wait:
        t, ranks = torch.from_numpy(x), dist.get_process_group_ranks(group)
        root, op, more = ranks[step.root], TORCH_OPS[step.op], {"group": group, "async_op": step.later}
        part, parts = (torch.full([count], 99, dtype=t.dtype) for count in (step.count, size * t.numel()))
        result: Any = t
        works: list[Any] = []
        match step.name:
            case "all_reduce":
                works.append(dist.all_reduce(t, op, **more))
            case "reduce":
                works.append(dist.reduce(t, root, op, **more))
                result = t if me == step.root else None
            case "broadcast":
                works.append(dist.broadcast(t, root, **more))
            case "all_gather":
                result = parts.view(size, -1)
                works.append(dist.all_gather_into_tensor(parts, t, **more))
            case "gather":
                result = parts.view(size, -1) if me == step.root else None
                works.append(dist.gather(t, None if result is None else list(result), root, **more))
            case "scatter":
                result = part
                works.append(dist.scatter(part, list(t.view(size, -1)) if me == step.root else None, root, **more))
            case "reduce_scatter":
                result = part
                works.append(dist.reduce_scatter_tensor(part, t, op, **more))
            case "all_to_all":
                result = torch.full_like(t, 99)
                works.append(dist.all_to_all_single(result, t, **more))
            case "exchange":
                result = torch.full_like(t, 99)
                works.append(dist.isend(t, ranks[(me + 1) % size], group, step.seed))
                works.append(dist.irecv(result, ranks[(me - 1) % size], group, step.seed))
            case "barrier":
                result = None
                works.append(dist.barrier(**more))
        return functools.partial(self._wait, works, result)

    def sum_of(self, x: np.ndarray, later: bool) -> Wait:
        t = torch.from_numpy(x)
        return functools.partial(self._wait, [dist.all_reduce(t, group=self.shared, async_op=later)], t)

    def _wait(self, works: list[Any], result: Any) -> Any:
        for work in works:
            if work is not None:  # of a call that blocks
                work.wait()
        return None if result is None else result.numpy()


# ---- a rank ----


def one_thread(
    api: Own | Torch,
    make: Callable[[], list[Any]],
    members: list[list[int]],
    steps: list[Step],
    own: random.Random,
    waiters: ThreadPoolExecutor,
) -> int:
    """What one thread does in a round. Returns how many results it has compared. own: for what differs by rank."""
    groups = make()
    pending: list[Callable[[], None]] = []
    together: list[Callable[[], None]] = []
    elsewhere: list[Future[None]] = []
    checked = 0
    for number, step in enumerate(steps):
        if number % 7 == 0:
            together.append(sum_of_ranks(api, later=True))
        ranks = members[step.group]
        if api.rank not in ranks:
            continue
        me, size = ranks.index(api.rank), len(ranks)
        wait = api.call(groups[step.group], step, me, size, step.given(me, size))
        check = functools.partial(compare, wait, step.expected(me, size), f"{step} of ranks {ranks}")
        if own.random() < 0.2:
            elsewhere.append(waiters.submit(check))
        else:
            pending.append(check)
        checked += 1
        while len(pending) > IN_FLIGHT:
            pending.pop(own.randrange(len(pending)))()
    own.shuffle(pending)
    for check in [*pending, sum_of_ranks(api, later=False), *together]:
        check()
    for each in elsewhere:
        each.result(SOON)
    api.leave(groups)
    return checked


def sum_of_ranks(api: Own | Torch, later: bool) -> Callable[[], None]:
    """An operation on the group of all threads, the same of each thread, so that any order of the threads is right."""
    wait, total = api.sum_of(np.full(40, api.rank), later), WORLD * (WORLD - 1) // 2
    return functools.partial(compare, wait, np.full(40, total), "the group of all threads")


def compare(wait: Wait, expected: Any, what: str) -> None:
    found = wait()
    assert (found is None) == (expected is None), f"{what}: got {found}"
    if found is not None:
        np.testing.assert_array_equal(np.asarray(found), expected, what)


def run(rank: int, way: str, hosts: int, ranks: int, threads: int, rounds: int, seed: int) -> Iterator[int]:
    api = Own(threads) if way == "own" else Torch(way)
    rngs, own = [random.Random(seed + thread) for thread in range(threads)], random.Random(rank)
    checked = 0
    # Each thread has room for all that it hands to others, which may wait for what comes last.
    with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(threads * STEPS) as waiters:
        for _ in range(rounds):
            plans = [schedule(rng, hosts, ranks) for rng in rngs]
            makers = [api.prepare(thread, members) for thread, (members, _) in enumerate(plans)]
            futures = [
                pool.submit(one_thread, api, make, *plan, random.Random(own.random()), waiters)
                for make, plan in zip(makers, plans, strict=True)
            ]
            checked += sum(future.result(SOON) for future in futures)
            api.end_round()
    yield checked
    api.close()


def main(way: str, hosts: int, ranks: int, threads: int, rounds: int, seed: int) -> None:
    global WORLD
    WORLD = hosts * ranks
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has other names for two collectives, torch 2.10 has not
    with PretendedHosts(hosts, ranks, lambda rank: run(rank, way, hosts, ranks, threads, rounds, seed)) as job:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job.start(store.port)
        try:
            checked = sum(job.values().values())
        except RankFailed as failed:
            sys.exit(f"{failed} failed on seed {seed}")
        job.go_on()
    print(f"{checked} operations on {GROUPS * threads * rounds} groups, seed {seed}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
