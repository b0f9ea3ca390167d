"""Which algorithm runs in the backends over other engines: the names, and every threshold.

Sizes are in bytes. "Measured" means on 2 cores over the loopback interface, where the algorithms on both sides of a
threshold take equally long; benchmarks/results/hosts.md and many-hosts.md have the tables.
docs/reference/tuning.md describes each algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.contract.errors import UnsupportedError

ALGORITHMS: dict[str, dict[str, tuple[str, ...]]] = {
    "gloo": {
        "all_reduce": (
            "inline",  # 21 ms; torch's gloo 142: 8 bytes
            "all_gather",  # 85 ms; ring 596: 16 KiB on 8 hosts
            "reduce_scatter",  # 193 ms; ring 716: 1 MiB on 8 hosts
            "ring",  # gloo's own
        ),
        "reduce": (
            "inline",  # 22 ms; torch's gloo 82: 8 bytes
            "gather",  # 83 ms; torch's gloo 177: 64 KiB
            "reduce_scatter",  # 170 ms; torch's gloo 221: 1 MiB
        ),
        "broadcast": (
            "inline",  # 22 ms; torch's gloo 61: 8 bytes
            "binomial",  # gloo's own
            "scatter_all_gather",  # 170 ms; binomial 216: 1 MiB
        ),
        "gather": ("inline", "direct"),  # inline: 22 ms, torch's gloo 41: 8 bytes
        "scatter": ("inline", "direct"),  # inline: 22 ms, torch's gloo 41: 8 bytes
        "all_gather": (
            "inline",  # 22 ms; torch's gloo 124: 8 bytes
            "pairwise",  # 101 ms; ring 198: 1 MiB
            "ring",  # gloo's own
        ),
        "reduce_scatter": (
            "inline",  # 22 ms; torch's gloo 166: 8 bytes
            "all_to_all",  # 294 ms; torch's gloo 513: 16 MiB, hosts 5 ms apart at 500 Mbit/s
        ),
        "all_to_all": ("inline", "pairwise"),  # inline: 22 ms, torch's gloo 42: 8 bytes
    },
    "mpi": {  # inline: comes with the comparison; mpi: its own; the others: for what MPI does not reduce as we must
        "all_reduce": (
            "inline",
            "all_gather",
            "recursive_doubling",  # 158 ms; reduce_scatter 272: 256 KiB of float16 on 8 hosts, MPICH
            "reduce_scatter",
            "mpi",
        ),
        "reduce": ("inline", "gather", "reduce_scatter", "mpi"),
        "reduce_scatter": ("inline", "all_to_all", "mpi"),
    },
    "hierarchical": {  # the times are on 8 hosts with 2 ranks each, unless a line says otherwise
        "all_reduce": (
            "inline",
            "one_lane",  # 96 ms; all_lanes 146: 16 KiB
            "all_lanes",  # 175 ms; one_lane 295: 256 KiB
            "pipelined",  # 151 ms; gloo's ring 212, in one piece 185: 16 MiB on 2 hosts at 1 Gbit/s
        ),
        "reduce": ("inline", "one_lane", "all_lanes"),  # one_lane: 101 ms, all_lanes 144: 16 KiB
        "broadcast": ("inline", "one_lane", "all_lanes"),  # all_lanes: as for all_reduce
        "all_gather": ("inline", "one_lane", "all_lanes"),  # likewise
        "reduce_scatter": ("inline", "one_lane", "all_lanes"),  # likewise
        "all_to_all": (
            "inline",
            "one_lane",  # 98 ms; direct 116: 4 KiB
            "direct",
        ),
    },
    "nccl": {},  # NCCL chooses; its variable NCCL_ALGO forces one
}
"""The algorithms of each backend, by operation, and what shows that one of ours is faster than the engine's.

The times are from benchmarks/hosts.py (benchmarks/results/hosts.md), on 4 hosts, 20 ms apart, at 200 Mbit/s, unless a
line says otherwise. They include the comparison of the calls.
"""

# ---- composed: shared by all ----

INLINE = {"mpi": 248, "nccl": -1}
"""The most bytes of data that an envelope holds; else INLINE_DEFAULT. -1: none. For gloo see also DIRECT.

mpi: with the digest 256 bytes, which MPIs send eagerly; more takes twice as long (measured). nccl: none, as the data
may be in device memory.
"""
INLINE_DEFAULT = 1016  # 1 KiB with the digest: a longer envelope would slow down every comparison
ENVELOPES = 1 << 16
"""The most bytes that all ranks' envelopes together have; every rank receives them all in each comparison.

The more ranks, the shorter each envelope, but it always has room for INLINE_LEAST bytes. 64 KiB take 5 us at
100 Gbit/s, a sixth of a latency, and 0.5 ms at 1 Gbit/s, three latencies (benchmarks/results/many-hosts.md).
"""
INLINE_LEAST = 24
DIRECT = 1 << 20
"""On gloo: the most bytes of data that all ranks' envelopes for one rank have together.

Each rank then sends each other one an envelope of its own, only as long as its data requires. No algorithm sends fewer
bytes of a gather, scatter, all_gather, all_to_all or reduce_scatter, and all others take at least two latencies more.
So only memory limits this: a rank reserves three times as many bytes, which take memory only once they are used.
"""
COPIES = 1 << 17
"""In the envelopes of gloo, an all_reduce, broadcast or reduce sends whole arrays in one exchange if that makes a rank
send or receive at most this many bytes more than two exchanges would, of which the first one divides the array.

The second exchange takes another latency. So many bytes take as long as a latency of 1 ms at 1 Gbit/s, and as one of
20 ms at 50 Mbit/s.
"""

GATHERED = {"gloo": 1 << 17}
"""An all_reduce uses all_gather, and a reduce uses gather, up to this total size of all ranks' arrays. Measured.

GATHERED_DEFAULT is for all backends that are not listed.
"""
GATHERED_DEFAULT = 1 << 14

FEW = 16  # the most ranks of gloo of which a broadcast divides every array that it does not gather
MANY = 8  # the least number of ranks or hosts for what pays with many of them
DOUBLED = 1 << 18
"""On MANY ranks of MPI or more, an all_reduce of up to this size of a rank's array is by recursive_doubling.

On 8 hosts, 20 ms apart at 200 Mbit/s, 1, 16, 64 and 256 KiB of float16 took 93, 142, 169 and 158 ms with MPICH, at best
143, 185, 235 and 272 by the others (benchmarks/hosts.py); 8 bytes 86 instead of 75.
"""
DIVIDED = 1 << 16
"""On more than FEW ranks, a broadcast divides the array if each rank's share has at least this many bytes.

Then no rank sends or receives more than 2 arrays; along a binomial tree, the root sends log2(ranks). On 8 hosts at 100
Mbit/s, 5 ms apart, a broadcast of 1 MiB took 198 ms instead of 548 (benchmarks/hosts.py).
"""

DIVIDED_AT_ONCE = 1 << 24
"""The algorithm reduce_scatter works in pieces of this many bytes of the array; each takes all its latencies again.

Measured on 4 ranks of gloo on one host: in pieces of 4, 16 and 64 MiB, an all_reduce of 64 MiB took 189, 174 and
253 ms.
"""
REDUCED_AT_ONCE = 1 << 22  # bytes of a rank's array per piece, which stays in the cache of most processors

# ---- gloo ----

GLOO_EAGER = 1 << 15
"""Up to this size a message's data is copied into its envelope (eager); more follows once the receive has matched.

Measured: from 32 KiB on, a copy takes longer than a second transfer.
"""

GLOO_UNRECEIVED = 1 << 22
"""A rank sends another one so many bytes ahead of its receives; what follows waits for its receive, as large data does.

So one small message in some thousands takes a second transfer.
"""

PAIRWISE = 1 << 22
"""Up to this total size an all_gather is pairwise, above it a ring.

Of 4 MiB it took 277 ms instead of 403 on 8 hosts, 20 ms apart, and 236 instead of 267 on 4; on 20 hosts, 256 KiB took
223 ms instead of 1,097 (benchmarks/hosts.py).
"""
RING = 1 << 18
"""Up to this size of each rank's share, an all_reduce divides the array even if gloo's ring could reduce it.

On 8 hosts, 20 ms apart, 2 MiB took 286 ms instead of 714; on 4 hosts, 5 ms apart, 1 MiB took 102 ms instead of 134, and
2 MiB 198 instead of 187 (benchmarks/hosts.py).
"""
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


def envelope(backend: str, n: int) -> int:
    """The most bytes of data in one envelope in a group of n ranks; -1: none.

    On gloo, where each rank gets an envelope of its own, it is a multiple of every dtype's size.
    """
    if backend == "gloo":
        return DIRECT // n // 16 * 16
    most = INLINE.get(backend, INLINE_DEFAULT)
    return min(most, max(INLINE_LEAST, ENVELOPES // n // 8 * 8 - 8))


def inline(backend: str, n: int) -> dict[str, int]:
    """By operation, the most bytes of a rank's array whose data travels in envelopes among n ranks, or -1.

    For all_to_all_v it is the counts that travel there.
    """
    most = envelope(backend, n)
    blocks = n * most if backend == "gloo" else most
    return {
        **dict.fromkeys(("barrier", "all_gather", "gather", "scatter_array", "all_to_all_v"), most),
        **dict.fromkeys(("all_reduce", "broadcast", "reduce", "scatter", "reduce_scatter", "all_to_all"), blocks),
    }


def whole(n: int) -> int:
    """The most bytes of an array that n ranks of gloo all_reduce, broadcast or reduce in one exchange."""
    most = envelope("gloo", n)
    return most if n <= 2 else min(most, int(COPIES / (n - 1 - 2 * (n - 1) / n)))


def all_reduce(backend: str, n: int, size: int) -> str:
    """size: of one rank's array."""
    if backend == "mpi" and n >= MANY and size <= DOUBLED:
        return "recursive_doubling"
    return "all_gather" if _gathers(backend, n, size) else "reduce_scatter"


def reduce(backend: str, n: int, size: int) -> str:
    """size: of one rank's array."""
    return "gather" if n <= 2 or _gathers(backend, n, size) else "reduce_scatter"


def _gathers(backend: str, n: int, size: int) -> bool:
    """Whether a reduction begins by gathering all arrays. size: of one of them."""
    return size * n <= GATHERED.get(backend, GATHERED_DEFAULT)


def gloo_all_reduce(n: int, size: int, rings: bool) -> str:
    """size: of one rank's array. rings: whether gloo's ring reduces this dtype and op as the contract requires."""
    return "ring" if rings and size > RING * n else all_reduce("gloo", n, size)


def gloo_broadcast(n: int, size: int) -> str:
    divides = not _gathers("gloo", n, size) and (n <= FEW or size >= DIVIDED * n)
    return "scatter_all_gather" if n > 2 and divides else "binomial"


def gloo_all_gather(n: int, size: int) -> str:
    """size: of one rank's block."""
    return "pairwise" if size * n <= PAIRWISE else "ring"


def lanes(whole: int) -> str:
    """whole: the total size of the data between hosts."""
    return "one_lane" if whole <= ONE_LANE else "all_lanes"


def all_to_all_of_hosts(hosts: int, members: int, size: int) -> str:
    """The algorithm of an all_to_all. members: how many each host has. size: of the block from one rank to another."""
    return "one_lane" if hosts >= MANY and lanes(members * members * size) == "one_lane" else "direct"


def pipeline_step(lane_count: int, hosts: int) -> int:
    """The size of a piece of a pipelined all_reduce."""
    return max(PIPELINED, LANE_PIECE * lane_count * hosts)
