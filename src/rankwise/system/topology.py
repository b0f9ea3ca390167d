"""Which CPUs share a core, a last-level cache or a NUMA node, according to the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

SYSTEM = "/sys/devices/system"

CpuSet = frozenset[int]


def parse_cpus(text: str) -> CpuSet:
    """The kernel's list of CPUs: "0-2,5" -> 0, 1, 2, 5."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))


def cpus_text(cpus: Collection[int]) -> str:
    """The list of these CPUs as the kernel writes it: 0, 1, 2, 5 -> "0-2,5"."""
    lows = sorted(cpu for cpu in cpus if cpu - 1 not in cpus)
    highs = sorted(cpu for cpu in cpus if cpu + 1 not in cpus)
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in zip(lows, highs, strict=True))


def cores(cpus: CpuSet, system: str = SYSTEM) -> list[CpuSet]:
    """These CPUs by physical core, the core with the lowest CPU first."""
    return _sharing(cpus, lambda cpu: _listed(f"{system}/cpu/cpu{cpu}/topology/thread_siblings_list"))


def last_level_caches(cpus: CpuSet, system: str = SYSTEM) -> list[CpuSet]:
    """These CPUs by last-level cache, the cache with the lowest CPU first; an empty list if the kernel does not say."""
    caches = {cpu: _last_level(f"{system}/cpu/cpu{cpu}/cache") for cpu in cpus}
    return _sharing(cpus, caches.__getitem__) if all(caches.values()) else []


def nodes(cpus: CpuSet, system: str = SYSTEM) -> dict[int, CpuSet]:
    """These CPUs by the number of their NUMA node, ascending. CPUs that the kernel lists on no node are on one of their
    own, which has the next number, or 0 if the kernel lists none.
    """
    try:
        names = [name for name in os.listdir(f"{system}/node") if name.startswith("node") and name[4:].isdecimal()]
    except OSError:  # a kernel without NUMA, or a container without /sys
        return {0: cpus}
    numbers = sorted(int(name[4:]) for name in names)
    cpus_of = {number: cpus & _listed(f"{system}/node/node{number}/cpulist") for number in numbers}
    elsewhere = max(numbers, default=-1) + 1
    cpus_of[elsewhere] = cpus.difference(*cpus_of.values())
    return {number: node for number, node in cpus_of.items() if node}


def _sharing(cpus: CpuSet, sharers: Callable[[int], CpuSet]) -> list[CpuSet]:
    return sorted({cpus & sharers(cpu) | {cpu} for cpu in cpus}, key=min)


def _last_level(cache: str) -> CpuSet:
    """The CPUs that share the cache of the highest level in this folder."""
    levels = []
    try:
        for index in os.listdir(cache):
            if index.startswith("index"):
                with open(f"{cache}/{index}/level") as file:
                    levels.append((int(file.read()), index))
    except OSError:  # many virtual machines hide their caches
        return frozenset()
    return _listed(f"{cache}/{max(levels)[1]}/shared_cpu_list") if levels else frozenset()


def _listed(path: str) -> CpuSet:
    try:
        with open(path) as file:
            return parse_cpus(file.read())
    except OSError:
        return frozenset()
