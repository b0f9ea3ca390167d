"""Which CPUs each rank of a host may use: `rankwise run --bind`. The kernel says what they share.

A *core* is a physical one: the CPUs (hardware threads) that share it. Only the CPUs that the launcher may use count.
This file is imported only for jobs that bind their ranks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from rankwise.system.topology import SYSTEM, CpuSet, cores, last_level_caches, nodes

ONLY = {"cache": "the kernel names one last-level cache at most", "numa": "there is one NUMA node"}


def places(bind: str, n: int, system: str = SYSTEM, allowed: Collection[int] | None = None) -> list[CpuSet]:
    """The CPUs of each of n ranks. bind: core, cache or numa. allowed: by default the CPUs that this process may use.

    The ranks are spread evenly over the cores, last-level caches or nodes, in order, so that neighbouring ranks are
    near each other. If there are more ranks than these, neighbouring ranks share one. Where the kernel does not name
    the caches, each node counts as one.
    """
    cpus = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    units = list(nodes(cpus, system).values())
    if bind == "core":
        units = [core for node in units for core in cores(node, system)]
    elif bind == "cache":
        units = [cache for node in units for cache in last_level_caches(node, system) or [node]]
    return [units[rank * len(units) // n] for rank in range(n)]


def remark(bind: str, chosen: Sequence[CpuSet]) -> str:
    """A remark for the user about what may be unexpected, or ""."""
    used = len(set(chosen))
    if bind == "core" and used < len(chosen):
        return f"--bind core: {len(chosen)} ranks share {used} core{'s' * (used > 1)}"
    if bind in ONLY and used == 1 and len(chosen) > 1:
        return f"--bind {bind}: {ONLY[bind]}, so every rank may use all CPUs"
    return ""
