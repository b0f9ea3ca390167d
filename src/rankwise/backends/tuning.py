"""Which algorithm runs in the backends over other engines: the names, and every threshold.

Sizes are in bytes. "Measured" means on 2 cores over the loopback interface, where the algorithms on both sides of a
threshold take equally long; benchmarks/results/hosts.md and many-hosts.md have the tables.
docs/reference/tuning.md describes each algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.contract.errors import UnsupportedError

_LANES = ("inline", "one_lane", "all_lanes")

ALGORITHMS: dict[str, dict[str, tuple[str, ...]]] = {
    "gloo": {
        "all_reduce": ("inline", "all_gather", "recursive_doubling", "halving_doubling", "reduce_scatter", "ring"),
        "reduce": ("inline", "gather", "binomial", "reduce_scatter"),
        "broadcast": ("inline", "binomial", "scatter_all_gather"),
        "gather": ("inline", "direct", "binomial"),
        "scatter": ("inline", "direct", "binomial"),
        "all_gather": ("inline", "pairwise", "bruck", "ring"),
        "all_gather_v": ("padded", "broadcasts"),
        "reduce_scatter": ("inline", "all_to_all"),
        "all_to_all": ("inline", "pairwise", "bruck"),
    },
    "mpi": {
        "all_reduce": ("inline", "all_gather", "recursive_doubling", "halving_doubling", "reduce_scatter", "mpi"),
        "reduce": ("inline", "gather", "binomial", "reduce_scatter", "mpi"),
        "reduce_scatter": ("inline", "all_to_all", "mpi"),
    },
    "hierarchical": {
        "all_reduce": (*_LANES, "engine", "pipelined"),
        "reduce": (*_LANES, "engine"),
        "broadcast": _LANES,
        "all_gather": _LANES,
        "reduce_scatter": _LANES,
        "all_to_all": ("inline", "one_lane", "direct"),
    },
    "nccl": {},  # NCCL chooses; its variable NCCL_ALGO forces one
}
"""The algorithms of each backend, by operation."""

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
"""On gloo and at most FEW ranks: the most bytes of data that all ranks' envelopes for one rank have together.

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
"""On at most FEW ranks, an all_reduce uses all_gather up to this total size of all ranks' arrays. Measured.

The same holds for a reduce, which uses gather. GATHERED_DEFAULT is for all backends that are not listed. A backend that
is not in MESSAGES does this on any number of ranks.
"""
GATHERED_DEFAULT = 1 << 14

MESSAGES = ("gloo", "mpi")  # the backends that have the messages of composed.algorithms
FEW = 16
"""On at most so many ranks, small data is exchanged with all ranks at once, else in about log2(ranks) steps.

By the model of benchmarks/results/many-hosts.md, a step takes A, and each message about 20 us of CPU time. On 16 ranks,
15 messages at once take 330 us with A = 30 us (100 Gbit/s) and 450 us with A = 150 us; 4 steps with one message each
take 200 and 680 us. The two take equally long on about 8 ranks with A = 30 us, and on 32 to 64 ranks with A = 150 us.
Between hosts that are 20 ms apart, a step takes 20 ms: there an all_reduce of 8 bytes on 8 ranks took 24 ms instead of
70 (measured by benchmarks/hosts.py).
"""
MANY = 8
"""From this number of ranks on, data that is too large for an exchange with all ranks at once takes about log2(ranks)
steps, up to the sizes below.
"""
DOUBLED = 1 << 15
"""Up to this size of a rank's array, an all_reduce on MANY ranks uses recursive_doubling, which sends it in every step.

Larger arrays use halving_doubling, which has twice as many steps, and sends about 2 arrays in all. By the model, both
take equally long with 44 KB at 1 Gbit/s and 870 KB at 100 Gbit/s on 8 ranks, with 23 KB and 450 KB on 1,024.
"""
HALVED = 1 << 16
"""Up to this size of each rank's piece, an all_reduce on MANY ranks uses halving_doubling; above it, a ring, or
reduce_scatter where no ring can be used. Only its latencies make a ring slower, and a piece of 64 KiB takes several of
them: 0.5 ms at 1 Gbit/s (the model).
"""
DIVIDED = 1 << 16
"""On more than FEW ranks, a broadcast or reduce divides the array if each rank's share has at least this many bytes.

Then no rank sends or receives more than 2 arrays; along a binomial tree, the root sends or receives log2(ranks). On 8
hosts at 100 Mbit/s, 5 ms apart, a broadcast of 1 MiB took 198 ms instead of 548, and a reduce 177 instead of 309
(benchmarks/hosts.py).
"""
BLOCK = 1 << 16  # an all_gather on MANY ranks is Bruck's up to this block, else a ring, for the same reason
TREE_BLOCK = 1 << 12
"""Up to this size of a block, a gather or scatter on more than FEW ranks is binomial. In the model this is never
slower, but the model ignores that blocks are copied on the way.
"""
BRUCK_BLOCK = 1 << 10
"""Up to this size of a block, an all_to_all on more than FEW ranks is Bruck's, which sends each block log2(ranks) / 2
times on average.

By the model, Bruck's and pairwise take equally long with 0.5 KB on 8 ranks and 0.9 KB on 64 at 1 Gbit/s, and with 50
and 90 KB at 100 Gbit/s.
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

Measured: from 32 KiB on, a copy takes longer than a second transfer. Every envelope that a rank is ready to receive
needs this much memory.
"""

PAIRWISE = 1 << 20  # up to this total size an all_gather on at most FEW ranks is pairwise, not a ring. Measured
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


def direct(backend: str, n: int) -> bool:
    """Whether each rank of a group of n sends each other one an envelope of its own."""
    return backend == "gloo" and n <= FEW


def envelope(backend: str, n: int) -> int:
    """The most bytes of data in one envelope in a group of n ranks; -1: none.

    In an envelope of its own for each rank (`direct`), it is a multiple of every dtype's size.
    """
    if direct(backend, n):
        return DIRECT // n // 16 * 16
    most = INLINE.get(backend, INLINE_DEFAULT)
    return min(most, max(INLINE_LEAST, ENVELOPES // n // 8 * 8 - 8))


def inline(backend: str, n: int) -> dict[str, int]:
    """By operation, the most bytes of a rank's array whose data travels in envelopes among n ranks, or -1.

    For all_to_all_v it is the counts that travel there.
    """
    most = envelope(backend, n)
    blocks = n * most if direct(backend, n) else most
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
    if _gathers(backend, n, size):
        return "all_gather"
    if n >= MANY and backend in MESSAGES:
        if size <= DOUBLED:
            return "recursive_doubling"
        if size <= HALVED * n:
            return "halving_doubling"
    return "reduce_scatter"


def reduce(backend: str, n: int, size: int) -> str:
    """size: of one rank's array."""
    if n <= 2 or _gathers(backend, n, size):
        return "gather"
    if _divides(n, size):
        return "reduce_scatter"
    return "binomial" if backend in MESSAGES else "gather"


def gloo_broadcast(n: int, size: int) -> str:
    divided = n > 2 and not _gathers("gloo", n, size) and _divides(n, size)
    return "scatter_all_gather" if divided else "binomial"


def _divides(n: int, size: int) -> bool:
    """Whether a broadcast or reduce on n ranks divides the array. size: of one that is too large to be sent whole."""
    return n <= FEW or size >= DIVIDED * n


def _gathers(backend: str, n: int, size: int) -> bool:
    """Whether a reduction begins by gathering all arrays. size: of one of them."""
    few = n <= FEW or backend not in MESSAGES
    return few and size * n <= GATHERED.get(backend, GATHERED_DEFAULT)


def gloo_all_reduce(n: int, size: int, rings: bool) -> str:
    """size: of one rank's array. rings: whether gloo's ring reduces this dtype and op as the contract requires."""
    chosen = all_reduce("gloo", n, size)
    return "ring" if rings and chosen == "reduce_scatter" else chosen


def gloo_all_gather(n: int, size: int) -> str:
    """size: of one rank's block."""
    if n <= FEW and size * n <= PAIRWISE:
        return "pairwise"
    return "bruck" if n >= MANY and size <= BLOCK else "ring"


def gloo_rooted(n: int, size: int) -> str:
    """The algorithm of a gather or scatter. size: of one rank's block."""
    return "binomial" if n > FEW and size <= TREE_BLOCK else "direct"


def gloo_all_to_all(n: int, size: int) -> str:
    """size: of the block from one rank to another."""
    return "bruck" if n > FEW and size <= BRUCK_BLOCK else "pairwise"


def gloo_all_gather_v(n: int, largest: int, whole: int) -> str:
    """Padded if that at most doubles the bytes sent, or if the blocks are small."""
    return "padded" if n * largest <= 2 * whole or largest <= PADDED else "broadcasts"


def lanes(whole: int) -> str:
    """whole: the total size of the data between hosts."""
    return "one_lane" if whole <= ONE_LANE else "all_lanes"


def lane_reduction(hosts: int, whole: int) -> str:
    """How the lanes reduce over the hosts what is not pipelined. whole: as for `lanes`."""
    few = lanes(whole)
    return "engine" if few == "all_lanes" and hosts >= MANY else few


def all_to_all_of_hosts(hosts: int, members: int, size: int) -> str:
    """The algorithm of an all_to_all. members: how many each host has. size: of the block from one rank to another."""
    return "one_lane" if hosts >= MANY and lanes(members * members * size) == "one_lane" else "direct"


def pipeline_step(lane_count: int, hosts: int) -> int:
    """The size of a piece of a pipelined all_reduce."""
    return max(PIPELINED, LANE_PIECE * lane_count * hosts)
