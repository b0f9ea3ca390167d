"""Which algorithm runs in the backends over other engines: the names, and every threshold.

Sizes are in bytes. "Measured" means on 2 cores over the loopback interface, where the algorithms on both sides of a
threshold take equally long; benchmarks/RESULTS.md and docs/scaling.md have the tables. docs/tuning.md describes each
algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.contract.errors import UnsupportedError

_LANES = ("inline", "one_lane", "all_lanes")

ALGORITHMS: dict[str, dict[str, tuple[str, ...]]] = {
    "gloo": {
        "all_reduce": ("inline", "all_gather", "reduce_scatter", "ring"),
        "reduce": ("inline", "gather"),
        "all_gather": ("inline", "pairwise", "ring"),
        "all_gather_v": ("padded", "broadcasts"),
        "reduce_scatter": ("inline", "all_to_all"),
    },
    "mpi": {
        "all_reduce": ("inline", "all_gather", "reduce_scatter", "mpi"),
        "reduce": ("inline", "gather", "mpi"),
        "reduce_scatter": ("inline", "all_to_all", "mpi"),
    },
    "hierarchical": {
        "all_reduce": (*_LANES, "pipelined"),
        "reduce": _LANES,
        "broadcast": _LANES,
        "all_gather": _LANES,
        "reduce_scatter": _LANES,
    },
    "nccl": {},  # NCCL chooses; its variable NCCL_ALGO forces one
}
"""The algorithms of each backend, by operation."""

# ---- composed: shared by all ----

INLINE = {"mpi": 248, "nccl": -1}
"""The most bytes of a rank that an envelope holds; else INLINE_DEFAULT. -1: none.

mpi: with the digest 256 bytes, which MPIs send eagerly; more takes twice as long (measured). nccl: none, as the data
may be in device memory.
"""
INLINE_DEFAULT = 1016  # 1 KiB with the digest: a longer envelope would slow down every comparison

GATHERED = {"gloo": 1 << 17}
"""Up to this total size of all ranks' arrays an all_reduce uses all_gather; else GATHERED_DEFAULT. Measured."""
GATHERED_DEFAULT = 1 << 14

REDUCED_AT_ONCE = 1 << 22  # bytes of a rank's array per piece, which stays in the cache of most processors

# ---- gloo ----

GLOO_EAGER = 1 << 15
"""Up to this size a message's data is copied into its envelope (eager); more follows once the receive has matched.

Measured: from 32 KiB on, a copy takes longer than a second transfer. Every envelope that a rank is ready to receive
needs this much memory.
"""

PAIRWISE = 1 << 20  # up to this total size of all ranks' blocks an all_gather is pairwise, not a ring. Measured
PADDED = 1 << 14  # blocks up to this size are padded, however much that adds: their latency dominates. Measured

# ---- hierarchical ----

ONE_LANE = 16 << 10  # up to this total size one lane carries all data: latency dominates. Measured
PIPELINED = 1 << 20  # the least piece of an all_reduce; a smaller one takes as long to start as to transfer. Measured
LANE_PIECE = 64 << 10  # the least that a piece has for each host and lane, for the same reason


def check(backend: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The algorithms to force, by operation. ValueError if this backend has no such operation or algorithm."""
    known = ALGORITHMS.get(backend, {})
    for operation, algorithm in wanted.items():
        if operation not in known:
            expected = (
                f"one of {', '.join(known)}" if known else "none, as this backend has no algorithms to choose from"
            )
            raise ValueError(f"RANKWISE_ALGORITHM: the operation {operation!r} given to {backend}, expected {expected}")
        if algorithm not in known[operation]:
            raise ValueError(
                f"RANKWISE_ALGORITHM: the algorithm {algorithm!r} given for {operation} of {backend}, "
                f"expected one of {', '.join(known[operation])}"
            )
    return dict(wanted)


def cannot_run(backend: str, operation: str, algorithm: str, why: str, remedy: str = "") -> UnsupportedError:
    """The error for a forced algorithm that exists and cannot run this call. It does the group no harm."""
    return UnsupportedError(f"RANKWISE_ALGORITHM={operation}={algorithm}", backend, why, remedy)


def inline(backend: str) -> int:
    return INLINE.get(backend, INLINE_DEFAULT)


def all_reduce(backend: str, whole: int) -> str:
    """whole: the total size of all ranks' arrays."""
    return "all_gather" if whole <= GATHERED.get(backend, GATHERED_DEFAULT) else "reduce_scatter"


def gloo_all_reduce(whole: int, rings: bool) -> str:
    """rings: whether gloo's ring reduces this dtype and op as the contract requires."""
    small = all_reduce("gloo", whole)
    return "ring" if rings and small != "all_gather" else small


def gloo_all_gather(whole: int) -> str:
    return "ring" if whole > PAIRWISE else "pairwise"


def gloo_all_gather_v(n: int, largest: int, whole: int) -> str:
    """Padded if that at most doubles the bytes sent, or if the blocks are small."""
    return "padded" if n * largest <= 2 * whole or largest <= PADDED else "broadcasts"


def lanes(whole: int) -> str:
    """whole: the total size of the data between hosts."""
    return "one_lane" if whole <= ONE_LANE else "all_lanes"


def pipeline_step(lane_count: int, hosts: int) -> int:
    """The size of a piece of a pipelined all_reduce."""
    return max(PIPELINED, LANE_PIECE * lane_count * hosts)
