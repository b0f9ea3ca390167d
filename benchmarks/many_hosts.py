"""Prints tables of what opening a group on many hosts costs: requests to the store, seconds, memory and connections.

    python benchmarks/many_hosts.py requests [--hosts 2 4] [--ranks 4] [--backend gloo] [--json]
    python benchmarks/many_hosts.py meeting [--hosts 64 128 256 512 1024] [--ranks 8]
    python benchmarks/many_hosts.py memory [--hosts 2 4 8 16 32] [--ranks 1 2]
    python benchmarks/many_hosts.py connecting [--ranks 8 16 32 64]

All hosts are simulated: their ranks are processes on this machine, forked from this one, which reach each other and the
store through the loopback interface. `requests` and `memory` open real groups, on all ranks. In `meeting`, each host is
one process, which does what the leader of the host's ranks does, with values of the real size for all of them.
`connecting` compares gloo's two ways to connect a group.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

import rankwise as rw
from rankwise.backends import registry
from rankwise.backends.composed.opening import packed
from rankwise.backends.gloo.meeting import gather
from rankwise.backends.gloo.roster import shortened
from rankwise.contract.job import Job
from rankwise.meeting.torch_store import TorchStore
from rankwise.system.process_identity import ProcessIdentity

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "backends"))
from counting_store import CountingStore
from pretended_hosts import PretendedHosts

TIMEOUT = 120.0
KIB = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    defaults: dict[Callable[..., None], tuple[list[int], list[int]]] = {
        requests: ([2, 4], [1, 4]),
        meeting: ([64, 128, 256, 512, 1024], [8]),
        memory: ([2, 4, 8, 16, 32], [1, 2]),
        connecting: ([1], [8, 16, 32, 64]),
    }
    for function, (hosts, ranks) in defaults.items():
        part = parts.add_parser(function.__name__, help=function.__doc__)
        part.add_argument("--hosts", type=int, nargs="+", default=hosts)
        part.add_argument("--ranks", type=int, nargs="+", default=ranks, help="ranks on each host")
        part.add_argument("--backend", help="default: as rw.init chooses")
        part.add_argument("--json", action="store_true", help="print each row as a line of JSON")
        part.set_defaults(function=function)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options.function(options)


def row(options: argparse.Namespace, **cells: object) -> None:
    """Print a row of a table, after its head if it is the first."""
    if options.json:
        print(json.dumps(cells), flush=True)
        return
    if not hasattr(options, "head"):
        options.head = True
        print("| " + " | ".join(name.replace("_", " ") for name in cells) + " |\n|" + "---:|" * len(cells))
    print("| " + " | ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in cells.values()) + " |")
    sys.stdout.flush()


def sizes(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    return ((hosts, ranks) for ranks in options.ranks for hosts in options.hosts)


def stages(hosts: int, ranks: int, body: Callable[[int], Iterator[Any]], count: int) -> list[list[Any]]:
    """Run `body` on all ranks, which meet at a store of this process. What each yields, by stage and rank."""
    with PretendedHosts(hosts, ranks, body) as job:
        served = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        job.start(served.port)
        found = []
        for _ in range(count):
            found.append(list(job.values().values()))
            job.go_on()
        return found


# ---- requests ----


def requests(options: argparse.Namespace) -> None:
    """requests to the store, counted by a proxy"""

    def body(rank: int) -> Iterator[str]:
        group = rw.init(options.backend, timeout=TIMEOUT)
        yield "open"
        part = group.split(rank % 2)
        assert part is not None
        assert part.all_reduce(1) == part.world_size
        yield "split"
        part.close()
        group.close()
        yield "close"

    for hosts, ranks in sizes(options):
        with PretendedHosts(hosts, ranks, body) as job:
            store = CountingStore()
            job.start(store.port)
            counts, before, connections = {}, 0, 0
            for _ in range(3):
                (phase,) = set(job.values().values())
                counts[phase] = store.total - before
                before = store.total
                if phase == "open":
                    connections = store.connections
                job.go_on()
            store.close()
        row(options, hosts=hosts, ranks_per_host=ranks, **counts, connections_when_open=connections)


# ---- meeting ----


def meeting(options: argparse.Namespace) -> None:
    """seconds that the leaders of many hosts take to meet at one store"""
    for hosts, ranks in sizes(options):

        def body(host: int, hosts: int = hosts, ranks: int = ranks) -> Iterator[Any]:
            end = time.monotonic() + TIMEOUT
            values = {rank: value_of(rank, hosts) for rank in range(host * ranks, (host + 1) * ranks)}
            before, cpu = private(), time.process_time()
            yield None
            start = time.monotonic()
            port = int(os.environ["MASTER_PORT"])
            store = TorchStore(lambda: tcp_store(port))
            everybody = gather(store, values, hosts * ranks, TIMEOUT, end)
            assert len(everybody) == hosts * ranks
            yield start, time.monotonic(), time.process_time() - cpu, private() - before

        with PretendedHosts(hosts, 1, body) as job:
            served = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            job.start(served.port)
            job.values()
            cpu = time.process_time()
            job.go_on()
            starts, ends, spent, memory = zip(*job.values().values(), strict=True)
            row(
                options,
                hosts=hosts,
                ranks=hosts * ranks,
                seconds=f"{max(ends) - min(starts):.2f}",
                CPU_s_of_the_store=f"{time.process_time() - cpu:.2f}",
                CPU_s_of_rank_0=f"{spent[0]:.2f}",
                CPU_s_of_another_leader=f"{mean(spent[1:]):.3f}",
                KiB_of_all_values=len(packed(value_of(r, hosts) for r in range(hosts * ranks))) // KIB,
                MB_of_a_leader=f"{mean(memory) / 1e6:.1f}",
            )


def value_of(rank: int, hosts: int) -> bytes:
    """As large as what a rank sends: its process identity, and gloo's address with a number for each rank."""
    address = bytearray(136)
    address[:8] = secrets.token_bytes(8)
    name = f"node{rank:04d}".encode()
    size = np.array([len(name), 136, *range(hosts)], np.int64)
    info = size[:1].tobytes() + name + size[1:2].tobytes() + bytes(address) + size[2:].tobytes()
    return packed([ProcessIdentity.own().text().encode(), b"0/%d" % rank, shortened(info)])


def tcp_store(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, None, False, timedelta(seconds=TIMEOUT), wait_for_workers=False)


# ---- memory ----


def memory(options: argparse.Namespace) -> None:
    """memory and sockets of a rank, when the group is open and after every operation"""

    def body(rank: int) -> Iterator[Any]:
        alone = rw.Group(registry.opener("solo")(Job(), TIMEOUT), backend="solo")
        every_operation(alone)  # makes the pages private that every program writes
        yield None
        before, base, start = private(), sockets(), time.monotonic()
        group = rw.init(backend, timeout=TIMEOUT)
        yield private() - before, sockets() - base, time.monotonic() - start, threads()
        every_operation(group)
        yield private() - before, sockets() - base, 0, threads()
        group.close()
        yield None

    for backend in [options.backend] if options.backend else ["gloo", "hierarchical"]:
        for hosts, ranks in sizes(options):
            if backend == "hierarchical" and ranks == 1:
                continue  # the same as gloo
            found = stages(hosts, ranks, body, 4)
            opened, used = ([mean(column) for column in zip(*rows, strict=True)] for rows in found[1:3])
            row(
                options,
                backend=backend,
                hosts=hosts,
                ranks_per_host=ranks,
                seconds_to_open=f"{opened[2]:.2f}",
                sockets_when_open=f"{opened[1]:.1f}",
                MB_when_open=f"{opened[0] / 1e6:.1f}",
                sockets_after_every_operation=f"{used[1]:.1f}",
                MB_after_every_operation=f"{used[0] / 1e6:.1f}",
                threads=f"{used[3]:.1f}",
            )


def every_operation(group: rw.Group) -> None:
    """Each operation with 8 bytes and with 64 KiB for each rank."""
    n, me = group.world_size, group.rank
    for count in (1, 8 * KIB):
        x = np.ones(count)
        group.barrier()
        group.all_reduce(x)
        group.reduce(x)
        group.broadcast(x)
        group.all_gather(x)
        group.gather(x)
        group.scatter(np.ones(count * n) if me == 0 else None)
        group.reduce_scatter(np.ones(count * n))
        group.all_to_all(np.ones(count * n))
        group.all_gather_v(x[: max(1, count - me % 2)])
        sending = group.isend(x, (me + 1) % n)
        group.recv(x, (me - 1) % n)
        sending.wait()
    group.barrier()


def private() -> int:
    """Bytes of this process's memory that it shares with no other."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) * KIB for line in lines if line.startswith("Private_"))


def sockets() -> int:
    """The number of this process's open sockets, including those that listen."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the folder's own descriptor
            continue
    return sum(link.startswith("socket:") for link in links)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


# ---- connecting ----


def connecting(options: argparse.Namespace) -> None:
    """gloo's eager and lazy connections: time, sockets, and a send to a rank that posts its receive late"""

    def body(rank: int) -> Iterator[Any]:
        store = PrefixStore("gloo", tcp_store(int(os.environ["MASTER_PORT"])))
        n = int(os.environ["WORLD_SIZE"])
        settings: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        settings._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=lazy)]
        settings._threads = 2
        settings._timeout = timedelta(seconds=TIMEOUT)
        base = sockets()
        yield None
        start = time.monotonic()
        group: Any = ProcessGroupGloo(store, rank, n, settings)
        yield time.monotonic() - start, sockets() - base
        start = time.monotonic()
        x = torch.ones(2)
        for k in range(max(1, (n - 1).bit_length())):  # as recursive doubling does
            peer = rank ^ (1 << k)
            if peer < n:
                receiving, sending = group.recv([x], peer, k), group.send([torch.ones(2)], peer, k)
                receiving.wait()
                sending.wait()
        yield time.monotonic() - start, sockets() - base
        started = 0.0
        if rank < 2:  # to a peer with which nothing was exchanged, and which posts its receive a second later
            peer = n - 1 - rank
            start = time.monotonic()
            sending = group.send([x], peer, 99)
            started = time.monotonic() - start
            sending.wait()
        elif rank >= n - 2:
            time.sleep(1.0)
            group.recv([x], n - 1 - rank, 99).wait()
        yield started
        yield None

    for ranks in options.ranks:
        for lazy in (False, True):
            found = stages(ranks, 1, body, 5)
            opened, used = ([max(column) for column in zip(*rows, strict=True)] for rows in found[1:3])
            row(
                options,
                ranks=ranks,
                connections="lazy" if lazy else "eager",
                ms_to_open=f"{1e3 * opened[0]:.0f}",
                sockets_when_open=opened[1],
                ms_of_the_first_all_reduce=f"{1e3 * used[0]:.1f}",
                sockets_after_it=used[1],
                ms_until_isend_returns=f"{1e3 * max(found[3][:2]):.1f}",
            )


if __name__ == "__main__":
    main()
