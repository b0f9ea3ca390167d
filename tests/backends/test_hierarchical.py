"""hierarchical over simulated hosts: conformance, the traffic between hosts, failures."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from array_level import EVERY_SCENARIO
from engines import conforms
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.hierarchical.communicator import HierarchicalCommunicator
from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError
from rankwise.contract.message import ANY
from rankwise.contract.operations import Call
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks
from rankwise.testing.cases import OPERATIONS

sys.path.insert(0, str(Path(__file__).parent))
from hosts_in_threads import PLACEMENTS, opener


@pytest.mark.parametrize(
    ("level", "name"),
    [
        pytest.param(level, name, marks=pytest.mark.slow if level == "pointer" else ())  # array level calls these too
        for level, names in OPERATIONS.items()
        for name in names
    ],
)
def test_operation(level: str, name: str) -> None:
    hosts = PLACEMENTS["uneven"]
    conforms(name, level, len(hosts), opener(hosts))


@pytest.mark.parametrize("name", EVERY_SCENARIO)
@pytest.mark.parametrize("placement", ["one has one"])
def test_scenario(placement: str, name: str) -> None:
    hosts = PLACEMENTS[placement]
    run_ranks(EVERY_SCENARIO[name], len(hosts), backend=opener(hosts))


def test_groups_within_a_host_use_shared_memory() -> None:
    def body(group: Group) -> None:
        same_host, one_of_each = group.split(group.rank // 2), group.split(group.rank % 2)
        assert same_host is not None
        assert one_of_each is not None
        assert isinstance(group.comm, HierarchicalCommunicator)
        assert isinstance(same_host.comm, EngineCommunicator)
        assert not isinstance(one_of_each.comm, HierarchicalCommunicator)
        assert same_host.all_reduce(1) == one_of_each.all_reduce(1) == 2

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]))


# ---- receives from any rank ----


@pytest.mark.parametrize("size", [3, 200_000])
def test_messages_from_any_rank_of_any_host(size: int) -> None:
    def body(group: Group) -> None:
        n, me = group.world_size, group.rank
        if me == 0:
            receives = [group.irecv((size,), ANY, ANY, dtype=int) for _ in range(2 * n - 1)]
            assert group.all_reduce(1) == n  # their senders come here only when their messages are received
            last = group.irecv((size,), n - 1, 9, dtype=int)  # it waits behind the others
            found = set()
            for work in [*receives, last]:
                if work is last:
                    assert group.all_reduce(1) == n
                assert (work.wait() == 10 * work.source + work.tag).all()
                found.add((work.source, work.tag))
            assert found == {(rank, tag) for rank in range(n) for tag in (8, 9)}
            assert (last.source, last.tag) == (n - 1, 9)
        else:
            for tag in (8,) if me == n - 1 else (8, 9):
                group.send(np.full(size, 10 * me + tag), 0, tag)
            assert group.all_reduce(1) == n
            assert group.all_reduce(1) == n
            if me == n - 1:
                group.send(np.full(size, 10 * me + 9), 0, 9)

    def with_own(group: Group) -> None:
        if group.rank == 0:
            works = [group.isend(np.full(size, tag), 0, tag) for tag in (8, 9)]
            body(group)
            for work in works:
                work.wait()
        else:
            body(group)

    run_ranks(with_own, 4, backend=opener(PLACEMENTS["2x2 round-robin"]), timeout=60)


def test_a_probe_describes_the_message_of_the_next_receive() -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            assert group.probe(tag=ANY) is None
            group.barrier()
            for _ in range(group.world_size - 1):
                message = group.probe(tag=ANY, timeout=30)
                assert message is not None
                assert message.count == message.tag == message.source
                assert group.probe(message.source, tag=ANY, timeout=30) == message
                got = group.irecv((message.count,), ANY, message.tag).wait()
                assert (got == message.source).all()
        else:
            group.barrier()
            group.send(np.full(group.rank, float(group.rank)), 0, group.rank)

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]))


def test_a_cancelled_receive_from_any_rank_leaves_its_message() -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            receiving = group.irecv((1,), ANY)
            assert receiving.cancel()
            assert not receiving.cancel()
        group.barrier()
        if group.rank:
            group.send(np.full(1, float(group.rank)), 0)
        else:
            assert [group.recv((1,), rank)[0] for rank in (3, 2, 1)] == [3, 2, 1]

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]))


def test_a_receive_from_any_rank_ends_with_the_group() -> None:
    def body(group: Group) -> None:
        part = group.dup()
        receiving = part.irecv((1,), ANY)
        assert not receiving.done()
        with pytest.raises(CollectiveTimeout):
            receiving.wait(0.01)
        comm = part.comm
        assert isinstance(comm, HierarchicalCommunicator)
        group.barrier()
        if group.rank == 3:
            comm.abort("had enough")
        else:
            with pytest.raises(RankwiseError):
                receiving.wait()
        part.close()
        assert comm._channel._prober.idle()

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=60)


def test_a_blocking_receive_within_a_host_that_fails_takes_no_later_message() -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            with group.timeout_of(0.05), pytest.raises(CollectiveTimeout) as caught:
                group.recv((3,), 0)
        group.barrier()
        if group.rank == 0:
            group.send(np.full(3, 7.0), 1)
        elif group.rank == 1:
            assert (group.recv((3,), 0) == 7).all()
            assert caught.value.limit == 0.05  # and its traceback has kept the failed call's frames until here

    run_ranks(body, 4, backend=opener([0, 0, 1, 1]))


def test_a_failed_message_names_the_rank_of_the_group() -> None:
    def body(group: Group) -> tuple[int, str]:
        if group.rank < 2:
            return -1, ""
        part = group.comm._local  # type: ignore[attr-defined]
        if group.rank == 3:
            part.abort("had enough")
            return -1, ""
        with pytest.raises(PeerLostError) as caught:
            group.recv((1,), 3)
        return caught.value.rank, str(caught.value)

    rank, text = run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=60)[2]
    assert rank == 3
    assert re.fullmatch(r"rank 3 \(pid \d+ on .*\) was lost in recv: aborted the group: had enough", text)


def test_messages_to_all_parts_have_the_whole_time_of_close() -> None:
    def body(group: Group) -> None:
        given: list[float] = []

        def close(close_part: Callable[[float], None], seconds: float = 1.0) -> None:
            given.append(seconds)
            close_part(seconds)

        dup = group.dup()
        part = dup.comm
        assert isinstance(part, HierarchicalCommunicator)
        for each in part._parts():
            each.close = partial(close, each.close)  # type: ignore[method-assign]
        part.close(60)
        assert len(given) == (3 if part._lane else 2)
        assert min(given) > 30

    run_ranks(body, 3, backend=opener([0, 0, 1]))


# ---- what crosses between hosts ----


class Counting:
    """A communicator that adds up the bytes that leave this rank for others. Its parts count in the same place.

    The numbers are those of the leanest algorithm for each operation, which every engine has for
    large data: each block goes to each rank that lacks it once.
    """

    def __init__(self, inner: Any, sent: Counter[int], host: tuple[int, ...], ranks: tuple[int, ...]) -> None:
        self._inner, self._sent, self._host, self._ranks = inner, sent, host, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def split(self, color: int, key: int = 0) -> Any:
        part = self._inner.split(color, key)
        if part is None:
            return None
        ranks = np.empty(part.world_size, np.int64)
        mine = np.array([self._ranks[self._inner.rank]])
        part.all_gather(mine.ctypes.data, ranks.ctypes.data, 8, 13)
        return Counting(part, self._sent, self._host, tuple(ranks.tolist()))

    def _count(self, to: int, nbytes: int) -> None:
        me = self._ranks[self._inner.rank]
        if self._host[self._ranks[to]] != self._host[me]:
            self._sent[me] += nbytes

    def run(self, call: Call) -> None:
        for to, count in enumerate(self._leaving(call)):
            self._count(to, count * call.dtype.itemsize)
        self._inner.run(call)

    def _leaving(self, call: Call) -> Sequence[int]:
        """How many elements this rank sends to each rank."""
        rank, n = self._inner.rank, self._inner.world_size
        match call.operation.name:
            case "all_to_all_v":
                return call.send_counts or ()
            case "all_gather_v":
                return [call.counts[rank]] * n if call.counts else ()
            case "gather_v":
                return [call.counts[rank] if to == call.root else 0 for to in range(n)] if call.counts else ()
            case "scatter_v" if rank == call.root:
                return call.counts or ()
            case "broadcast" if rank == call.root:
                return [call.count] * n
        return ()


N, SIZE = 4, 1 << 20  # bytes of x; 2 hosts of 2 ranks

# Operation: the bytes that all hosts together must send, whatever the algorithm. Of what a host gets
# it must get every byte that it lacks; of a reduction, the others' part reduced to one.
LEAST: dict[str, tuple[Callable[[Group, Any], object], int]] = {
    "all_reduce": (lambda g, x: g.all_reduce(x), 2 * SIZE),
    "all_reduce of float16": (lambda g, x: g.all_reduce(x.view(np.float16)), 3 * SIZE),  # half of the way as float32
    "broadcast": (lambda g, x: g.broadcast(x, 2), SIZE),
    "reduce": (lambda g, x: g.reduce(x, 1), SIZE + SIZE // 2),  # both pieces reduced, then one brought to the root
    "all_gather": (lambda g, x: g.all_gather(x), 4 * SIZE),
    "gather": (lambda g, x: g.gather(x, 3), 2 * SIZE),
    "scatter": (lambda g, x: g.scatter(x if g.rank == 1 else None, 1), SIZE // 2),
    "reduce_scatter": (lambda g, x: g.reduce_scatter(x), SIZE),
    "all_to_all": (lambda g, x: g.all_to_all(x), 2 * SIZE),
}


@pytest.mark.parametrize("placement", ["2x2", "2x2 round-robin"])
@pytest.mark.parametrize("name", LEAST)
def test_no_byte_crosses_between_hosts_twice(name: str, placement: str) -> None:
    call, least = LEAST[name]
    hosts = PLACEMENTS[placement]
    sent: Counter[int] = Counter()

    def body(group: Group) -> None:
        x = np.ones(SIZE // 4, np.float32)
        group.barrier()
        if group.rank == 0:
            sent.clear()
        group.barrier()
        call(group, x)

    def wrap(flat: OpenCommunicator) -> OpenCommunicator:
        return Counting(flat, sent, hosts, tuple(range(N)))  # type: ignore[return-value]

    run_ranks(body, N, backend=opener(hosts, wrap))
    small = 4 * 4096  # the envelopes of a call, its headers and the barrier before it, 4 KiB each
    assert least <= sum(sent.values()) <= least + small, dict(sent)
    if name == "all_reduce":
        assert max(sent.values()) - min(sent.values()) <= small, "the lanes share the work unevenly"


class Recording:
    """A communicator that records the collectives that its rank calls. Its parts record in the same place."""

    def __init__(self, inner: Any, calls: list[str]) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, call: Call) -> None:
        self._calls.append(call.operation.name)
        self._inner.run(call)

    def split(self, color: int, key: int = 0) -> Any:
        part = self._inner.split(color, key)
        return None if part is None else Recording(part, self._calls)


@pytest.mark.parametrize("name", ["barrier", "all_reduce", "broadcast", "all_gather", "reduce", "scatter"])
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_call_is_compared_in_one_round_trip_between_hosts(name: str, size: int) -> None:
    """A small collective's data shares that round trip, so no other follows."""
    calls: list[list[str]] = [[] for _ in range(4)]

    def body(group: Group) -> None:
        x, y = np.ones((4, size)), np.ones(size)
        args: dict[str, tuple[Any, ...]] = {
            "barrier": (),
            "all_reduce": (x.ctypes.data, size, DType.F64, ReduceOp.SUM),
            "broadcast": (x.ctypes.data, size, DType.F64, 1),
            "reduce": (x.ctypes.data, size, DType.F64, ReduceOp.SUM, 1),
            "all_gather": (y.ctypes.data, x.ctypes.data, size, DType.F64),
            "scatter": (x.ctypes.data, y.ctypes.data, size, DType.F64, 1),
        }
        group.barrier()
        calls[group.rank].clear()
        getattr(group.comm, name)(*args[name])

    def wrap(flat: OpenCommunicator) -> OpenCommunicator:
        return Recording(flat, calls[flat.rank])  # type: ignore[return-value]

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"], wrap))
    for rank, made in enumerate(calls):
        compared = ["all_gather_v"] if rank in (0, 2) else []  # the first rank of each host
        if size == 1 or name == "barrier":
            assert made == compared, made
        else:
            assert made[: len(compared)] == compared
            assert len(made) > 1 or not compared


@pytest.mark.parametrize(
    ("name", "hosts", "size", "between"),
    [
        ("all_reduce", 2, 800, ["all_reduce"]),
        ("reduce", 2, 800, ["reduce"]),
        ("all_reduce", 2, 20_000, ["all_to_all_v", "all_gather_v"]),
        ("reduce", 2, 20_000, ["all_to_all_v", "gather_v"]),
        ("all_reduce", 8, 20_000, ["all_to_all_v", "all_gather_v"]),
    ],
)
def test_small_data_uses_the_engines_reductions(name: str, hosts: int, size: int, between: list[str]) -> None:
    """A float16 is sent as float32, so that it is rounded only once."""
    placement = tuple(host for host in range(hosts) for _ in range(2))
    calls: list[list[str]] = [[] for _ in placement]

    def body(group: Group) -> None:
        for dtype in (np.float64, np.float16):
            x = np.full(size, 1 if group.rank else 2048, dtype)  # 2049 is no float16
            group.barrier()
            calls[group.rank].clear()
            x = getattr(group, name)(x)
            assert x is None or (x == np.array(2047 + len(calls)).astype(dtype)).all()

    def wrap(flat: OpenCommunicator) -> OpenCommunicator:
        return Recording(flat, calls[flat.rank])  # type: ignore[return-value]

    run_ranks(body, len(placement), backend=opener(placement, wrap))
    assert calls[0] == ["all_gather_v", *between]


# ---- failures ----


@pytest.mark.parametrize(
    ("most", "one"),
    [
        (lambda g, x: g.all_reduce(x), lambda g, x: g.broadcast(x)),
        (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x, "max")),
        (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x[1:])),
        (lambda g, x: g.all_reduce(x.reshape(50, -1)), lambda g, x: g.all_reduce(x.reshape(-1, 50))),
        (lambda g, x: g.scan(x), lambda g, x: g.exscan(x)),
        (lambda g, x: g.broadcast(x, 0), lambda g, x: g.broadcast(x, 1)),
        (lambda g, x: g.barrier(), lambda g, x: g.split(0)),
    ],
)
@pytest.mark.parametrize("whole_host", [False, True])
def test_a_mismatch_reaches_every_rank(
    most: Callable[[Group, Any], object], one: Callable[[Group, Any], object], whole_host: bool
) -> None:
    different = (2, 3) if whole_host else (3,)

    def body(group: Group) -> dict[int, str]:
        x = np.full(50_000, float(group.rank))
        with pytest.raises(MismatchError) as caught:
            (one if group.rank in different else most)(group, x)
        assert (x == group.rank).all(), "its array was changed by a refused call"
        with pytest.raises(RankwiseError):
            group.barrier()
        return caught.value.calls

    for calls in run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=20):
        assert {2, 3} & calls.keys(), calls


def test_a_rank_that_aborts_fails_the_others_at_once() -> None:
    def body(group: Group) -> None:
        assert isinstance(group.comm, HierarchicalCommunicator)
        group.barrier()
        if group.rank == 3:
            group.comm.abort("had enough")
        start = time.monotonic()
        with pytest.raises(RankwiseError):
            group.all_reduce(np.ones(100_000))
        assert time.monotonic() - start < 40
        with pytest.raises(RankwiseError):
            group.barrier()

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=60)


def test_a_missing_rank_is_named() -> None:
    over = threading.Event()

    def body(group: Group) -> None:
        group.timeout = 0.5 if group.rank == 2 else 20  # its neighbour finds it, and tells the others
        if group.rank == 3:
            assert over.wait(30)
            return
        with pytest.raises((CollectiveTimeout, PeerLostError)) as caught:
            group.all_reduce(np.ones(10))
        if group.rank == 2 and isinstance(caught.value, CollectiveTimeout):
            assert caught.value.missing == (3,)
        assert "rank 1 of group" not in "".join(traceback.format_exception(caught.value)), "a part's numbers"
        with pytest.raises(RankwiseError):
            group.barrier()
        finished.append(group.rank)
        if len(finished) == 3:
            over.set()

    finished: list[int] = []
    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=60)


def test_all_ranks_name_the_rank_that_aborts_and_its_reason() -> None:
    """A part fails with its own numbers of the ranks, and the others fail their parts in turn."""
    reason = "it is not a number, and the reason is longer than what the core keeps of it " * 5

    def body(group: Group) -> tuple[int, str]:
        group.barrier()
        if group.rank == 3:
            group.comm.abort(reason)
        with pytest.raises(PeerLostError) as caught:
            group.all_reduce(np.ones(10))
        assert "Traceback" not in "".join(traceback.format_exception(caught.value)).replace("Traceback", "", 1)
        return caught.value.rank, str(caught.value)

    for rank, text in run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=60):
        assert rank == 3
        assert re.fullmatch(r"rank 3 (was lost in all_reduce #\d: )?aborted the group: it is not a num.*", text), text


def test_a_mismatch_shows_what_differs() -> None:
    def body(group: Group) -> tuple[str, tuple[int, ...]]:
        with pytest.raises(MismatchError) as caught:
            group.all_reduce(np.ones(4 if group.rank < 3 else 5))
        return str(caught.value).splitlines()[-1], caught.value.different

    for text, different in run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]), timeout=60):
        assert text == "  rank 3: all_reduce(count=5, dtype=float64, op=sum)   <-- other count"
        assert different == (3,)


# Four processes on two hosts, with gloo between them: rank 3 does not come, and only rank 2 waits for it directly.
LATE = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
import rankwise as rw
from rankwise.backends.hierarchical import communicator
from pretended_hosts import PretendedHosts

def body(rank):
    group = rw.init("hierarchical", timeout=60)
    group.barrier()
    group.timeout = 2
    yield "met"
    if rank == 3:
        time.sleep(60)
    try:
        group.all_reduce(np.ones(10))
    except rw.CollectiveTimeout as error:
        yield error.missing, error.operation, error.sequence, error.limit, error.stacks

with PretendedHosts(2, 2, body) as hosts:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    hosts.start(store.port)
    hosts.values()
    hosts.go_on()
    print(hosts.values(dead=[3]))
"""


@pytest.mark.slow  # it waits for timeouts
def test_every_rank_names_the_rank_that_is_late() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LATE, str(Path(__file__).parent)], capture_output=True, text=True, timeout=100
    )
    found = ast.literal_eval(ran.stdout or "{}")
    assert sorted(found) == [0, 1, 2], ran.stderr
    for fields in found.values():
        assert fields[:4] == [[3], "all_reduce", 2, 2], fields
    assert found[2][4]["3"].endswith("in body\n"), "a rank of the same host shows the stack"


def test_operations_started_keep_their_order_with_direct_ones() -> None:
    def body(group: Group) -> None:
        x = np.ones(30_000)
        works = []
        for turn in range(10):
            works.append(group.all_reduce(x, async_op=True))
            works.append(group.broadcast(x, turn % 4, async_op=True))
            if turn % 3 == 0:
                assert group.all_reduce(1) == 4
        group.all_reduce(x)
        assert (x == 4.0**11).all()
        assert all(work.done() for work in works)

    run_ranks(body, 4, backend=opener(PLACEMENTS["2x2"]))
