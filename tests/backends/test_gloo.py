"""The gloo backend: a part of the conformance suite (`make test-all PART=engines` runs all of it), and how it fails."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from array_level import EVERY_SCENARIO
from engines import FULL, conforms
from rankwise import BackendUnavailable, CollectiveTimeout, Group, MismatchError, PeerLostError, RankwiseError
from rankwise.contract.message import ANY
from rankwise.testing import run_ranks
from rankwise.testing.cases import OPERATIONS

SOME = [
    (2, "array", "all_reduce"),
    (3, "pointer", "all_reduce"),
    (3, "pointer", "reduce"),
    (3, "pointer", "reduce_scatter_v"),
    (3, "pointer", "all_gather_v"),
    (3, "array", "gather_v"),
    (3, "array", "all_to_all_v"),
    (3, "pointer", "scatter"),
    (3, "pointer", "send_recv"),
]
SOME_SCENARIOS = [
    "nested_splits",
    "negative_color_takes_no_part",
    "groups_do_not_mix",
    "every_pair",
    "many_messages",
    "large_both_ways",
    "messages_during_collectives",
    "messages_from_any_rank",
    "messages_of_unknown_size",
    "exchanges_with_neighbours",
    "to_oneself",
    "nan_propagates",
    "many_pending_works",
    "refused_arguments",
    "one_rank_has_it_all",
]


ALL = [(n, level, name) for n in (2, 4) for level, names in OPERATIONS.items() for name in names]


@pytest.mark.parametrize(("n", "level", "operation"), ALL if FULL else SOME)
def test_operation(n: int, level: str, operation: str) -> None:
    conforms(operation, level, n, "gloo")


@pytest.mark.parametrize("name", list(EVERY_SCENARIO) if FULL else SOME_SCENARIOS)
def test_scenario(name: str) -> None:
    run_ranks(EVERY_SCENARIO[name], 4 if FULL else 3, backend="gloo")


def test_a_rank_may_close_its_group_while_others_are_in_its_last_exchange() -> None:
    def body(group: Group) -> None:
        from rankwise.backends.gloo.direct_envelopes import DirectEnvelopes

        complete = DirectEnvelopes._complete

        def late(envelopes: DirectEnvelopes, sent: list[Any]) -> list[int]:
            patch.undo()
            assert group.recv_object(src=0) == "closed"
            time.sleep(0.3)  # until gloo has seen that the connection ended; a shorter time makes the test weaker
            return complete(envelopes, sent)

        part = group.split(0)
        assert part is not None
        assert part.all_reduce(1) == 3
        with pytest.MonkeyPatch.context() as patch:
            if group.rank == 2:
                patch.setattr(DirectEnvelopes, "_complete", late)
            assert part.all_reduce(group.rank) == 3
        if group.rank == 2:  # the exchange after it does need rank 0
            with pytest.raises(PeerLostError) as caught:
                part.barrier()
            lost = caught.value
            assert (lost.rank, lost.operation, lost.how) == (0, "barrier", "left the group")
        if group.rank == 0:
            part.close()
            group.send_object("closed", dst=2)
        group.barrier()
        part.close()

    run_ranks(body, 3, backend="gloo")


def test_pairs_that_gloo_lacks_are_reduced_in_the_order_of_the_ranks() -> None:
    def body(group: Group) -> None:
        x = np.random.default_rng(group.rank).normal(size=100_003).astype(np.float32)
        everybody = group.all_gather(x)
        want = everybody[0]
        for other in everybody[1:]:
            want = want + other
        part = group.reduce_scatter(x)
        assert part.tobytes() == np.array_split(want, group.world_size)[group.rank].tobytes()
        narrow = group.all_reduce(x.astype(np.float16))
        wide = sum(row.astype(np.float16).astype(np.float32) for row in everybody)
        assert narrow.tobytes() == wide.astype(np.float16).tobytes()

    run_ranks(body, 3, backend="gloo")


def test_mismatches_raise_on_every_rank_and_leave_the_outputs_unchanged() -> None:
    def body(group: Group) -> list[dict[int, str]]:
        found = []
        for other in (
            lambda g, x: g.all_reduce(x[1:]),
            lambda g, x: g.barrier(),
            lambda g, x: g.all_reduce(x, "max"),
            lambda g, x: g.all_reduce(x.reshape(2, -1)),
            lambda g, x: g.all_reduce(x.reshape(2, -1), async_op=True).wait(),
        ):
            for size in (6, 100_000):
                part = group.dup()
                x = np.full(size, 1.0 + group.rank)
                with pytest.raises(MismatchError) as caught:
                    other(part, x) if part.rank == 1 else part.all_reduce(x)
                assert (x == 1.0 + group.rank).all()
                assert sorted(caught.value.calls) == [0, 1]
                with pytest.raises(MismatchError):
                    part.barrier()
                found.append(caught.value.calls)
                part.close()
        return found

    found = run_ranks(body, 2, backend="gloo")
    assert found[0] == found[1]
    assert all(calls[0].startswith("all_reduce(count=") and calls[1] for calls in found[0])


def test_all_to_all_of_different_lengths_does_not_reach_gloo() -> None:
    """In gloo alone, one rank's process would end and the other would get a wrong result."""

    def body(group: Group) -> str:
        with group.dup() as part, pytest.raises(MismatchError) as caught:
            part.all_to_all(np.arange(5 if part.rank == 0 else 7))
        return str(caught.value)

    errors = run_ranks(body, 2, backend="gloo")
    assert errors[0] == errors[1]
    assert "send_counts=[3, 2], recv_counts=[3, 3]" in errors[0]
    assert "send_counts=[4, 3], recv_counts=[3, 3]" in errors[0]


@pytest.mark.slow  # tests/backends/composed runs these algorithms on as many ranks, without their sockets
def test_many_ranks_exchange_data_in_few_steps() -> None:
    """Small and middle sizes, with the usual algorithms, and a mismatch that most ranks learn of from others."""

    def body(group: Group) -> str:
        n, me = group.world_size, group.rank
        for count in (1, 100, 1_000, 30_000):
            x = np.arange(count, dtype=np.float32) % 7 + me
            want = np.arange(count) % 7 * n + n * (n - 1) / 2
            assert (group.all_reduce(x.copy()) == want).all()
            assert (group.all_reduce(x.astype(np.float16)) == want).all()
            got = group.reduce(x.copy(), 4)
            assert got is None if me != 4 else (got == want).all()
            assert (group.all_gather(x)[:, 0] == range(n)).all()
            gathered = group.gather(x, 3)
            assert gathered is None if me != 3 else (gathered[:, -1] - gathered[0, -1] == range(n)).all()
            rows = np.repeat(np.arange(n), count) if me == 5 else None
            assert (group.scatter(rows, 5) == me).all()
            assert (
                group.all_to_all(np.repeat(np.arange(n) + 100 * me, count))[::count] == me + 100 * np.arange(n)
            ).all()
        group.barrier()
        part = group.dup()
        with pytest.raises(MismatchError) as caught:
            part.all_reduce(x, "max" if me == 6 else "sum")
        part.close()
        return str(caught.value)

    told = run_ranks(body, 9, backend="gloo", timeout=110)
    assert told == [told[0]] * 9
    assert "rank 6: all_reduce(count=30000, dtype=float32, op=max)" in told[0]


@pytest.mark.parametrize("sent", [5, 200_000])
def test_a_message_of_another_size(sent: int) -> None:
    """A message of another length is written nowhere, and does not end the process, as it would in gloo alone."""

    def body(group: Group) -> None:
        for expected in (sent - 1, sent + 1, 300_000, 2):
            part = group.dup()
            odd, words = np.zeros(expected), rf"count={sent}.*count={expected}"
            if group.rank == 0:
                part.isend(np.ones(sent), 1)
                with pytest.raises(MismatchError, match=words):
                    part.barrier()
            else:
                with pytest.raises(MismatchError, match=words):
                    part.recv(odd, 0)
            assert not odd.any()
            part.close()

    run_ranks(body, 2, backend="gloo")


def test_a_rank_that_does_not_join() -> None:
    def body(group: Group) -> tuple[int, ...]:
        with group.dup() as part:
            part.timeout = 0.3
            if group.rank == 1:
                group.recv((1,), 0, 5)
                with pytest.raises(CollectiveTimeout):  # it learns why when it comes
                    part.barrier()
                return (1,)
            with pytest.raises(CollectiveTimeout) as caught:
                part.all_reduce(np.ones(3))
            assert caught.value.limit == 0.3
            group.send(np.ones(1), 1, 5)
            assert caught.value.states[1] == "in no call of this group"
            return caught.value.missing

    assert run_ranks(body, 2, backend="gloo") == [(1,), (1,)]


def test_a_receive_may_be_waited_for_a_while() -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            group.recv((1,), 0, 1)
            group.send(np.full(2, 7.0), 0)
            return
        work = group.irecv((2,), 1)
        with pytest.raises(CollectiveTimeout):
            work.wait(0.02)
        assert not work.done()
        group.send(np.ones(1), 1, 1)
        assert work.wait().tolist() == [7.0, 7.0]

    run_ranks(body, 2, backend="gloo")


def test_pending_sends_share_the_threads_of_their_group() -> None:
    def body(group: Group) -> None:
        x = np.arange(5000.0)
        if group.rank == 0:
            works = [group.isend(x + number, 1, number) for number in range(50)]
            assert not any(work.done() for work in works)
            assert len(own_threads()) < 20
            group.send(0, 1, 50)
            while not works[-1].done():  # they may be received in any order
                time.sleep(0.001)
            assert not works[0].done()
            group.send(0, 1, 50)
            rw.wait_all(works)
        else:
            for received in [[49], range(49)]:
                group.recv((), 0, 50, dtype=int)
                for number in received:
                    assert (group.recv(x.shape, 0, number) == x + number).all()

    run_ranks(body, 2, backend="gloo")


def test_small_messages_to_a_slow_receiver_wait_in_the_senders_own_memory() -> None:
    """Some are sent ahead, not all; after they have been received, in any order of tags, so are others."""
    arrays = [np.full(n % 2 * 4000, float(n)) for n in range(300)]

    def body(group: Group) -> None:
        for _ in range(2):
            if group.rank == 0:
                works = [group.isend(array, 1, n % 2) for n, array in enumerate(arrays)]
                assert 0 < sum(work.done() for work in works) < len(works)
                group.send(0, 1, 2)
                rw.wait_all(works)
            else:
                group.recv((), 0, 2, dtype=int)
                for n in [*range(1, 300, 2), *range(0, 300, 2)]:
                    assert (group.recv(arrays[n].shape, 0, n % 2) == arrays[n]).all()

    run_ranks(body, 2, backend="gloo")


def test_every_tag_of_the_array_level() -> None:
    def body(group: Group) -> None:
        sending = group.isend(np.full(2, group.rank), 1 - group.rank, 2**31 - 1)
        assert group.recv((2,), 1 - group.rank, 2**31 - 1, dtype=int).tolist() == [1 - group.rank] * 2
        sending.wait()

    run_ranks(body, 2, backend="gloo")


def test_messages_from_any_rank_with_any_tag() -> None:
    """Small and large messages, to oneself too; a probe finds the next receive's message and does not receive it."""

    def body(group: Group) -> None:
        n, me = group.world_size, group.rank
        sizes = [3, 100_000]
        works = [group.isend(np.full(size, 10 * me + tag), 0, tag) for tag, size in enumerate(sizes)]
        if me == 0:
            seen = []
            while len(seen) < n * len(sizes):
                message = group.probe(tag=rw.ANY, timeout=30)
                assert message is not None
                assert message == group.probe(message.source, message.tag)
                assert message.count == sizes[message.tag]
                receiving = group.irecv((message.count,), message.source, ANY, dtype=int)
                assert (receiving.wait() == 10 * message.source + message.tag).all()
                assert (receiving.source, receiving.tag) == (message.source, message.tag)
                seen.append((message.source, message.tag))
            assert sorted(seen) == [(rank, tag) for rank in range(n) for tag in range(len(sizes))]
            assert group.probe(tag=rw.ANY) is None
        for work in works:
            work.wait()
        group.barrier()

    run_ranks(body, 3, backend="gloo")


def test_a_message_wakes_who_waits_for_one() -> None:
    def body(group: Group) -> None:
        waiting = threading.Thread(target=group.comm.await_arrival, args=(200.0,))
        waiting.start()
        while waiting.is_alive():
            group.send(np.ones(1), group.rank)
            waiting.join(0.01)

    run_ranks(body, 1, backend="gloo", timeout=100)


def test_receives_from_any_rank_match_messages_in_order() -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            works = [group.irecv((1,), src, tag) for src, tag in ((ANY, ANY), (1, 7), (ANY, 7), (1, ANY))]
            assert group.all_reduce(1) == 2
            assert [int(work.wait()[0]) for work in works] == [0, 1, 2, 3]
        else:
            assert group.all_reduce(1) == 2
            for number in range(4):
                group.send(np.full(1, float(number)), 0, 7)

    run_ranks(body, 2, backend="gloo")


def test_a_rank_that_leaves_does_not_end_receives_from_any_rank() -> None:
    """It ends them only when all other ranks have left, because then no message can arrive."""

    def body(group: Group) -> str:
        part = group.dup()
        if group.rank == 2:
            part.close()
        receiving = part.irecv((1,), ANY) if group.rank == 0 else None
        group.barrier()
        if group.rank == 1:
            part.send(np.ones(1), 0)
            group.barrier()
            part.close()
        if receiving is not None:
            assert receiving.wait().tolist() == [1.0]
            receiving = part.irecv((1,), ANY)
            group.barrier()
            with pytest.raises(PeerLostError) as caught:
                receiving.wait()
            return caught.value.how
        if group.rank == 2:
            group.barrier()
        return ""

    assert run_ranks(body, 3, backend="gloo")[0] == "left the group"


def own_threads() -> set[threading.Thread]:
    """The threads of this process that belong to a communicator."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("rankwise")}


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("end", ["close", "drop"])
def test_no_thread_outlives_its_communicator(size: int, end: str) -> None:
    def body(group: Group) -> tuple[list[str], list[str]]:
        before = own_threads()  # the whole group's, one of which may end meanwhile
        part = group.dup()
        other = 1 - group.rank
        sending = part.isend(np.ones(size), other)
        assert part.recv(np.zeros(size), other).all()
        sending.wait()
        assert part.probe(tag=rw.ANY) is None
        working = own_threads() - before  # before the last call, after which the other rank may end the connection
        assert part.all_reduce(np.ones(2), async_op=True).wait().tolist() == [2.0, 2.0]
        if end == "close":
            part.close()
        del part, sending
        gc.collect()
        limit = time.monotonic() + 30
        while own_threads() - before and time.monotonic() < limit:
            time.sleep(0.01)
        return sorted(thread.name for thread in working), [thread.name for thread in own_threads() - before]

    for working, left in run_ranks(body, 2, backend="gloo"):
        assert working  # for sends, messages, what is started; one of them may be idle and have ended
        assert left == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "count", "lost"),
    [
        (3, 3_000_000, 2),
        (3, 3_000, 0),
        (9, 3_000, 2),
        (9, 30_000, 2),
    ],
)
def test_a_rank_killed_in_the_middle(tmp_path: Path, n: int, count: int, lost: int) -> None:
    """In a ring; rank 0, which serves the store; and on many ranks, most of which exchange no message with the lost."""
    program = tmp_path / "program.py"
    program.write_text(
        f"x_count, lost = {count}, {lost}"
        """
import os, signal, sys, time
import numpy as np, rankwise as rw
group = rw.init(timeout=30)
x = np.ones(x_count)
group.all_reduce(x)
if group.rank == lost:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(100):
        group.all_reduce(x)
except rw.PeerLostError as error:
    print(f"{group.rank}: {error.rank} {error.how} {error.operation}", flush=True)
time.sleep(0.5)
"""
    )
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "--backend", "gloo", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert sorted(ran.stdout.splitlines()) == [f"{r}: {lost} ended all_reduce" for r in range(n) if r != lost]
    assert f"rank {lost}" in ran.stderr
    assert "SIGKILL" in ran.stderr


def test_counters_and_locks_between_hosts() -> None:
    program = Path(__file__).with_name("shared_between_hosts.py")
    ran = subprocess.run(
        [sys.executable, "-m", "rankwise", "run", "-n", "3", str(program), "gloo"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for rank in range(3):
        assert f"rank {rank}: all is as it should be" in ran.stdout


def test_ranks_of_a_master_address() -> None:
    """As another launcher would start them; a second group of the same processes also uses the address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = """
import rankwise as rw
with rw.init("gloo") as group:
    first = group.all_gather(group.rank).tolist()
print(first, rw.init("gloo").all_reduce(1))
"""
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [b"[0, 1] 2\n"] * 2


@pytest.mark.slow  # tests/frontends/torch/test_starts.py runs torchrun too
def test_torchrun(tmp_path: Path) -> None:
    """torchrun's agent serves the store; on one host the default is shared memory."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, rankwise as rw
for backend in (None, "gloo"):
    with rw.init(backend) as group:
        os.write(1, f"{group.backend} {group.all_reduce(1)}\\n".encode())
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)]
    environment = {**os.environ, "RANKWISE_BACKEND": "", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert sorted(ran.stdout.splitlines()) == ["gloo 2"] * 2 + ["shm 2"] * 2, ran.stderr


def test_several_hosts_need_a_master_address() -> None:
    from rankwise.backends.gloo.communicator import open_communicator
    from rankwise.contract.job import Job

    with pytest.raises(ValueError, match=r"srun started ranks on several hosts.*set MASTER_ADDR"):
        open_communicator(Job(0, 4, 0, 2, "srun", "x"), 1.0)
    text = r"host '.*' cannot resolve the name 'no-such-host\.invalid' \(.*\); set MASTER_ADDR to an address"
    with pytest.raises(BackendUnavailable, match=text):
        open_communicator(Job(1, 2, 0, 1, "srun", "x", master=("no-such-host.invalid", 29500)), 1.0)


def test_errors_reach_other_ranks_in_full() -> None:
    """The error that the first rank records is the one that the others raise."""

    def body(group: Group) -> str:
        with group.dup() as part:
            if group.rank == 0:
                part.comm._inner._fail(PeerLostError("gone", rank=1, how="so", operation="x", sequence=4))  # type: ignore[attr-defined]
            try:
                part.barrier()
            except RankwiseError as error:
                return f"{type(error).__name__} {error} {vars(error)}"
            return ""

    assert len(set(run_ranks(body, 2, backend="gloo"))) == 1
