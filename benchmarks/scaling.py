"""What each algorithm costs on many hosts: a model of latency and bandwidth, and a discrete simulation to check it.

    python benchmarks/scaling.py            the tables of benchmarks/results/many-hosts.md

The model. A message of m bytes between hosts takes A + m * B seconds: A is the latency including all
software, B the seconds per byte of a host's network interface, which all ranks of the host share. A step
within a host likewise takes a + m * b. A host sends and receives at the same time.

The simulation uses none of the formulas. Network interfaces are resources, which a message occupies for
m * B at the sender and at the receiver; a message starts when the messages on which it depends have
arrived. Since all messages are known from the start, a heap of start times suffices.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

from rankwise.backends import tuning


@dataclass(frozen=True)
class Machine:
    """Hosts with `ranks` ranks each. A, B: seconds, and seconds per byte, between hosts; a, b: within a host."""

    hosts: int
    ranks: int
    A: float
    B: float
    a: float
    b: float

    @property
    def n(self) -> int:
        return self.hosts * self.ranks


# ---- the model: seconds of an all_reduce of m bytes ----


def flat_ring(machine: Machine, m: float) -> float:
    """Ranks in the order of hosts: 2 (n - 1) steps of m / n. One hop in `ranks` leaves the host and is the slowest."""
    return 2 * (machine.n - 1) * (_hop(machine) + m / machine.n * machine.B)


def flat_ring_round_robin(machine: Machine, m: float) -> float:
    """Ranks assigned to the hosts round-robin: every hop leaves its host, and a host's ranks share its interface."""
    piece = m / machine.n * machine.B
    return 2 * (machine.n - 1) * max(machine.A + piece, machine.ranks * piece)


def flat_all_to_all(machine: Machine, m: float) -> float:
    """The backend gloo: each rank receives its n-th from all ranks and reduces it, then a ring gathers the results."""
    other = machine.n - machine.ranks
    there = machine.A + machine.ranks * other * m / machine.n * machine.B
    return there + (machine.n - 1) * (_hop(machine) + m / machine.n * machine.B)


def flat_recursive_doubling(machine: Machine, m: float) -> float:
    """Ranks in the order of hosts: the first steps stay within the hosts, then every rank of a host sends m."""
    within, between = _steps(machine)
    return within * (machine.a + m * machine.b) + between * (machine.A + machine.ranks * m * machine.B)


def flat_halving_doubling(machine: Machine, m: float) -> float:
    """Ranks in the order of hosts: when data leaves a host, each of its ranks has only a reduced piece to send."""
    within, between = _steps(machine)
    inside = within * machine.a + (1 - 1 / machine.ranks) * m * machine.b
    return 2 * (inside + between * machine.A + (1 - 1 / machine.hosts) * m * machine.B)


def hierarchical_ring(machine: Machine, m: float) -> float:
    """reduce_scatter within, all_to_all and a ring over the hosts in `ranks` lanes on one interface, all_gather."""
    share = m / machine.hosts * machine.B
    there = machine.A + (machine.hosts - 1) * share
    back = (machine.hosts - 1) * max(machine.A + share / machine.ranks, share)
    return _within(machine, m) + there + back


def hierarchical_bruck(machine: Machine, m: float) -> float:
    """As hierarchical_ring, with Bruck's all_gather instead of the ring."""
    once = (machine.hosts - 1) / machine.hosts * m * machine.B
    return _within(machine, m) + (1 + _steps(machine)[1]) * machine.A + 2 * once


def hierarchical_recursive_doubling(machine: Machine, m: float) -> float:
    """reduce_scatter within, recursive doubling over the hosts in one lane, all_gather."""
    return _within(machine, m) + _steps(machine)[1] * (machine.A + m * machine.B)


def hierarchical_halving_doubling(machine: Machine, m: float) -> float:
    """reduce_scatter within, halving and doubling over the hosts in all lanes, all_gather."""
    once = (machine.hosts - 1) / machine.hosts * m * machine.B
    return _within(machine, m) + 2 * (_steps(machine)[1] * machine.A + once)


def flat_comparison(machine: Machine, m: float) -> float:
    """Bruck's all_gather of the envelopes, before any data moves: every rank receives those of all ranks."""
    return ceil(log2(machine.n)) * machine.A + machine.ranks * _envelopes("gloo", machine) * machine.B


def hierarchical_comparison(machine: Machine, m: float) -> float:
    """A gather of the envelopes within the hosts, Bruck's all_gather between them, and a broadcast within them."""
    envelopes = _envelopes("hierarchical", machine)
    return 2 * machine.a + ceil(log2(machine.hosts)) * machine.A + envelopes * (machine.B + machine.b)


def _within(machine: Machine, m: float) -> float:
    return 2 * (machine.a + m * machine.b)


def _steps(machine: Machine) -> tuple[int, int]:
    """How many steps of doubling stay within the hosts, and how many do not. Ranks and hosts are powers of two."""
    return ceil(log2(machine.ranks)), ceil(log2(machine.hosts))


def _envelopes(backend: str, machine: Machine) -> int:
    """The bytes of all ranks' envelopes together, in a call whose data does not go into them."""
    return machine.n * (8 + (0 if tuning.direct(backend, machine.n) else tuning.envelope(backend, machine.n)))


def _hop(machine: Machine) -> float:
    """The latency of a hop along the ranks in order, on average."""
    return (machine.A + (machine.ranks - 1) * machine.a) / machine.ranks


MODELS: dict[str, Callable[[Machine, float], float]] = {
    "flat ring": flat_ring,
    "flat ring, ranks round-robin": flat_ring_round_robin,
    "gloo, all_to_all and ring": flat_all_to_all,
    "gloo, recursive doubling": flat_recursive_doubling,
    "gloo, halving and doubling": flat_halving_doubling,
    "hierarchical, all_to_all and ring": hierarchical_ring,
    "hierarchical, all_to_all and Bruck": hierarchical_bruck,
    "hierarchical, recursive doubling": hierarchical_recursive_doubling,
    "hierarchical, halving and doubling": hierarchical_halving_doubling,
}
COMPARISONS: dict[str, Callable[[Machine, float], float]] = {
    "gloo, the comparison": flat_comparison,
    "hierarchical, the comparison": hierarchical_comparison,
}


# ---- the simulation ----


@dataclass(frozen=True)
class Message:
    """From rank to rank. after: the numbers of the messages that its sender must have received."""

    source: int
    target: int
    size: float
    after: tuple[int, ...] = ()


def simulate(machine: Machine, host: Callable[[int], int], messages: list[Message]) -> float:
    """The time of the last arrival, if each interface sends one message at a time and receives one at a time."""
    waits_for = [len(message.after) for message in messages]
    frees: dict[int, list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        for before in message.after:
            frees[before].append(number)
    sends: dict[int, float] = defaultdict(float)
    receives: dict[int, float] = defaultdict(float)
    # A message is queued when its sender has received what it needs; interfaces serve messages in that order.
    ready = [(0.0, number) for number, count in enumerate(waits_for) if not count]
    came: list[float] = [0.0] * len(messages)
    heapq.heapify(ready)
    while ready:
        now, number = heapq.heappop(ready)
        message = messages[number]
        here, there = host(message.source), host(message.target)
        if here == there:
            came[number] = now + machine.a + message.size * machine.b
        else:
            start = max(now, sends[here], receives[there])
            if start > now:
                heapq.heappush(ready, (start, number))
                continue
            sends[here] = receives[there] = start + message.size * machine.B
            came[number] = start + message.size * machine.B + machine.A
        for later in frees[number]:
            waits_for[later] -= 1
            if not waits_for[later]:
                heapq.heappush(ready, (max(came[before] for before in messages[later].after), later))
    return max(came)


def ring_messages(
    ranks: list[int], size: float, rounds: int, first: int = 0, after: dict[int, tuple[int, ...]] | None = None
) -> list[Message]:
    """`rounds` rounds of a ring: each rank passes on what it received in the round before."""
    n, found = len(ranks), []
    for turn in range(rounds):
        for place, rank in enumerate(ranks):
            before = (after or {}).get(place, ()) if turn == 0 else (first + (turn - 1) * n + (place - 1) % n,)
            found.append(Message(rank, ranks[(place + 1) % n], size, before))
    return found


def simulated_flat_ring(machine: Machine, m: float, round_robin: bool) -> float:
    n = machine.n
    host = (lambda r: r % machine.hosts) if round_robin else (lambda r: r // machine.ranks)
    return simulate(machine, host, ring_messages(list(range(n)), m / n, 2 * (n - 1)))


def exchange(ranks: list[int], size: float, first: int) -> tuple[list[Message], dict[int, tuple[int, ...]]]:
    """From every rank to every other, each in its own order; and the numbers of the messages that each receives."""
    n, found, got = len(ranks), [], defaultdict(tuple)
    for step in range(1, n):
        for place, rank in enumerate(ranks):
            target = (place + step) % n
            got[target] += (first + len(found),)
            found.append(Message(rank, ranks[target], size))
    return found, got


def doubling(
    ranks: list[int], sizes: list[float], first: int, after: dict[int, tuple[int, ...]] | None = None, back: int = 0
) -> list[Message]:
    """A step for each of `sizes`, in which pairs of ranks exchange so much: in step k, places differ in bit k alone.

    back: if not 0, the steps from this one on repeat the earlier ones in reverse. There must be 2**k ranks.
    """
    found: list[Message] = []
    got: dict[int, tuple[int, ...]] = dict(after or {})
    for number, size in enumerate(sizes):
        bit = 1 << (number if not back or number < back else 2 * back - 1 - number)
        received: dict[int, tuple[int, ...]] = {}
        for place, rank in enumerate(ranks):
            received[place ^ bit] = (first + len(found),)
            found.append(Message(rank, ranks[place ^ bit], size, got.get(place, ())))
        got = received
    return found


def recursive_doubling(ranks: list[int], m: float, first: int) -> list[Message]:
    return doubling(ranks, [m] * ceil(log2(len(ranks))), first)


def halving_doubling(ranks: list[int], m: float, first: int) -> list[Message]:
    steps = ceil(log2(len(ranks)))
    halves = [m / 2 ** (k + 1) for k in range(steps)]
    return doubling(ranks, [*halves, *reversed(halves)], first, back=steps)


def bruck(ranks: list[int], size: float, first: int, after: dict[int, tuple[int, ...]]) -> list[Message]:
    """An all_gather of blocks: in step k each rank sends all that it has, 2**k blocks, to the rank 2**k before."""
    n, got = len(ranks), after
    found: list[Message] = []
    for k in range(ceil(log2(n))):
        received: dict[int, tuple[int, ...]] = {}
        for place, rank in enumerate(ranks):
            target = (place - 2**k) % n
            received[target] = (first + len(found),)
            found.append(Message(rank, ranks[target], min(2**k, n - 2**k) * size, got.get(place, ())))
        got = received
    return found


Between = Callable[[list[int], float, int], list[Message]]  # ranks, their bytes, the number of the first message


def exchange_and_ring(ranks: list[int], m: float, first: int) -> list[Message]:
    there, got = exchange(ranks, m / len(ranks), first)
    return there + ring_messages(ranks, m / len(ranks), len(ranks) - 1, first + len(there), got)


def exchange_and_bruck(ranks: list[int], m: float, first: int) -> list[Message]:
    there, got = exchange(ranks, m / len(ranks), first)
    return there + bruck(ranks, m / len(ranks), first + len(there), got)


def simulated_flat(machine: Machine, m: float, between: Between) -> float:
    return simulate(machine, lambda r: r // machine.ranks, between(list(range(machine.n)), m, 0))


def simulated_hierarchical(machine: Machine, m: float, between: Between, lanes: int) -> float:
    """lanes: how many lanes share the data."""
    messages: list[Message] = []
    for lane in range(lanes):
        ranks = [h * machine.ranks + lane for h in range(machine.hosts)]
        messages += between(ranks, m / lanes, len(messages))
    return _within(machine, m) + simulate(machine, lambda r: r // machine.ranks, messages)


SIMULATIONS: dict[str, Callable[[Machine, float], float]] = {
    "flat ring": lambda machine, m: simulated_flat_ring(machine, m, False),
    "flat ring, ranks round-robin": lambda machine, m: simulated_flat_ring(machine, m, True),
    "gloo, all_to_all and ring": lambda machine, m: simulated_flat(machine, m, exchange_and_ring),
    "gloo, recursive doubling": lambda machine, m: simulated_flat(machine, m, recursive_doubling),
    "gloo, halving and doubling": lambda machine, m: simulated_flat(machine, m, halving_doubling),
    "hierarchical, all_to_all and ring": lambda machine, m: simulated_hierarchical(
        machine, m, exchange_and_ring, machine.ranks
    ),
    "hierarchical, all_to_all and Bruck": lambda machine, m: simulated_hierarchical(
        machine, m, exchange_and_bruck, machine.ranks
    ),
    "hierarchical, recursive doubling": lambda machine, m: simulated_hierarchical(machine, m, recursive_doubling, 1),
    "hierarchical, halving and doubling": lambda machine, m: simulated_hierarchical(
        machine, m, halving_doubling, machine.ranks
    ),
}

# Fitted to benchmarks/hosts.py on this machine: two hosts with two ranks each, 1 Gbit/s per host.
HERE = {"A": 150e-6, "B": 8.25e-9, "a": 20e-6, "b": 0.4e-9}
# A cluster: 100 Gbit/s per host, TCP; memory as here.
CLUSTER = {"A": 30e-6, "B": 0.083e-9, "a": 5e-6, "b": 0.1e-9}


def main() -> None:
    print("simulation / model, 16 MiB and 64 KiB\n")
    machines = [Machine(hosts, ranks, **HERE) for hosts, ranks in ((2, 2), (4, 2), (4, 4), (8, 4))]
    print("| algorithm | " + " | ".join(f"{machine.hosts} x {machine.ranks}" for machine in machines) + " |")
    print("|---|" + "---:|" * len(machines))
    for name, run in SIMULATIONS.items():
        cells = [
            " and ".join(f"{run(machine, m) / MODELS[name](machine, m):.2f}" for m in (16 << 20, 64 << 10))
            for machine in machines
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    for title, machine in (
        ("2 hosts x 2 ranks, 1 Gbit/s (this machine)", Machine(2, 2, **HERE)),
        ("1,024 hosts x 8 ranks, 100 Gbit/s", Machine(1024, 8, **CLUSTER)),
    ):
        print(f"\nall_reduce on {title}, ms by the model\n")
        sizes = (8, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30)
        print("| algorithm | " + " | ".join(f"{m:,} B" for m in sizes) + " |")
        print("|---|" + "---:|" * len(sizes))
        for name, model in (MODELS | COMPARISONS).items():
            print(f"| {name} | " + " | ".join(f"{1e3 * model(machine, m):.4g}" for m in sizes) + " |")


if __name__ == "__main__":
    main()
