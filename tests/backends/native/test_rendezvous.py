"""Ranks that inherit no segment meet over a socket, even if other processes connect to it."""

from __future__ import annotations

import gc
import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from rankwise import _native
from rankwise._native import Segment
from rankwise.backends.native import rendezvous
from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.meeting.served_store import NONCE, PROOF
from rankwise.system import locality


def jobs(world_size: int, **other: Any) -> list[Job]:
    name = f"test {uuid.uuid4()}"
    return [Job(rank, world_size, None, None, "test", **{"id": name, **other}) for rank in range(world_size)]


def meet_all(ranks: list[Job], timeout: float = 20.0) -> list[Segment | Exception]:
    """Each job's meeting in a thread of its own; what each got, or what it raised."""
    results: list[Segment | Exception] = [RuntimeError("did not end")] * len(ranks)

    def body(place: int) -> None:
        try:
            results[place] = rendezvous.meet(ranks[place], timeout)
        except (RankwiseError, OSError, AssertionError) as error:
            results[place] = error

    threads = [threading.Thread(target=body, args=(place,)) for place in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout + 10)
    return results


def same_segment(results: list[Any]) -> bool:
    assert all(isinstance(result, Segment) for result in results), results
    return len({os.fstat(segment.fd).st_ino for segment in results}) == 1


@contextmanager
def in_background(call: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=call)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def connection(job: Job) -> socket.socket:
    """Someone who knows where rank 0 listens, and comes as soon as it does."""
    end = time.monotonic() + 10
    while True:
        someone = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        someone.settimeout(10)
        try:
            someone.connect(rendezvous._address(job))
            return someone
        except ConnectionRefusedError:
            someone.close()
            assert time.monotonic() < end
            time.sleep(0.01)


def introduction(job: Job, nonce: bytes) -> bytes:
    """What a rank that knows the secret says first, to rank 0 which greeted it with this nonce."""
    mine = os.urandom(NONCE)
    return mine + hmac.digest(rendezvous._key(job), b"client" + nonce + mine, "sha256")


@pytest.mark.parametrize("secret", [b"", b"only we know"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 12])
def test_all_ranks_receive_the_same_segment(world_size: int, secret: bytes) -> None:
    results = meet_all(jobs(world_size, secret=secret))
    assert same_segment(results)
    assert isinstance(results[0], Segment)
    assert results[0].world_size == world_size


def test_two_jobs_at_once_do_not_mix() -> None:
    first, second = jobs(3), jobs(3)
    results = meet_all([*first, *second])
    assert same_segment(results[:3])
    assert same_segment(results[3:])
    assert not same_segment(results)


def test_nothing_is_left() -> None:
    meet_all(jobs(3))
    gc.collect()  # what earlier tests have left is not freed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        results = meet_all(jobs(3))
        assert same_segment(results)
        del results
    assert len(os.listdir("/proc/self/fd")) == before


def test_garbage_is_ignored() -> None:
    ranks = jobs(2)

    def disturb() -> None:
        strangers = [connection(ranks[0]) for _ in range(12)]
        for number, stranger in enumerate(strangers):
            with suppress(BrokenPipeError, ConnectionResetError):
                if number % 4 == 0:
                    stranger.send(os.urandom(1 + 97 * number))
                elif number % 4 == 1:
                    stranger.send(b"\0" * 4096)
                elif number % 4 == 2:
                    stranger.close()
                # and some say nothing at all
        for stranger in strangers:
            stranger.close()

    results: list[Segment] = []
    with in_background(lambda: results.append(rendezvous.meet(ranks[0], 20.0))):
        disturb()
        results.append(rendezvous.meet(ranks[1], 20.0))
    assert same_segment(results)


def test_a_client_without_the_secret_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it knows the name of rank 0's socket, which depends on the secret."""
    ranks = jobs(2, secret=b"right")
    stranger = Job(1, 2, None, None, "test", ranks[1].id, b"wrong")
    assert rendezvous._address(stranger) != rendezvous._address(ranks[0])
    with pytest.raises(CollectiveTimeout, match=r"no process listens .* Is RANKWISE_SECRET, if it is set, the same"):
        rendezvous.meet(stranger, 0.1)
    address = rendezvous._address(ranks[0])
    monkeypatch.setattr(rendezvous, "_address", lambda job: address)
    results: list[Segment] = []
    with in_background(lambda: results.append(rendezvous.meet(ranks[0], 20.0))):
        with pytest.raises(CollectiveTimeout, match="does not answer as this job") as caught:
            rendezvous.meet(stranger, 0.5)
        assert (caught.value.missing, caught.value.limit) == ((0,), 0.5)
        results.append(rendezvous.meet(ranks[1], 20.0))
    assert same_segment(results)


def test_a_replayed_greeting_gets_nothing() -> None:
    """A recorded greeting is not accepted again, because rank 0's nonce is new each time."""
    ranks = jobs(3)
    with in_background(lambda: meet_all([ranks[0], ranks[2]])):
        with connection(ranks[0]) as once, connection(ranks[0]) as again:
            theirs = once.recv(NONCE)
            assert again.recv(NONCE) != theirs
            again.send(introduction(ranks[1], theirs))
            assert again.recv(4096) == b""
            once.send(introduction(ranks[1], theirs))
            assert len(once.recv(4096)) == PROOF
        assert isinstance(rendezvous.meet(ranks[1], 20.0), Segment)


def test_missing_ranks_are_named() -> None:
    ranks = jobs(4)
    results = meet_all([ranks[0], ranks[2]], timeout=1.0)
    for error in results:
        assert isinstance(error, CollectiveTimeout)
        assert (error.missing, error.operation, error.limit) == ((1, 3), "init", 1.0)
    (error,) = meet_all([ranks[3]], timeout=0.3)
    assert isinstance(error, CollectiveTimeout)
    assert error.missing == (0,)
    assert "no process listens" in str(error)


def test_a_rank_ends_while_the_others_wait() -> None:
    ranks = jobs(3)

    def ends() -> None:
        with connection(ranks[0]) as dying:
            dying.send(introduction(ranks[1], dying.recv(NONCE)))
            identity = json.dumps(rendezvous._identity(ranks[1]))
            dying.send(json.dumps({"set": {"1": identity}}).encode() + b"\n")
            time.sleep(0.2)

    with in_background(ends):
        results = meet_all([ranks[0]])
    assert isinstance(results[0], PeerLostError)
    assert results[0].rank == 1
    assert "rank 1 ended before all ranks had come" in str(results[0])


def test_ranks_disagree() -> None:
    ranks = jobs(3)
    other = Job(1, 4, None, None, "test", ranks[0].id)
    for error in meet_all([ranks[0], other]):
        assert isinstance(error, MismatchError)
        assert str(error) == "init: rank 1 expects 4 ranks, rank 0 expects 3"
    for error in meet_all([ranks[0], ranks[1], ranks[1]]):
        assert isinstance(error, MismatchError)
        assert str(error) == "init: two processes are rank 1 of this job"


@pytest.mark.parametrize("known", [True, False])
def test_ranks_of_other_versions_are_not_accepted(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = jobs(2)
    real = rendezvous._identity
    other = {"version": "0.0.9"} if known else {"rank": 1}  # what else there is may differ too
    monkeypatch.setattr(rendezvous, "_identity", lambda job: other if job.rank == 1 else real(job))
    release = "rankwise 0.0.9" if known else "another version of rankwise"
    for error in meet_all(ranks):
        assert isinstance(error, MismatchError)
        why = f"init: rank 1 runs {release}, and rank 0 runs rankwise {_native.version}"
        assert str(error) == f"{why}: expected the same version on all ranks"


@pytest.mark.parametrize("part", locality.REMEDIES)
def test_ranks_on_other_hosts_are_not_accepted(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = jobs(2)
    real = rendezvous._identity

    def identity(job: Job) -> dict[str, Any]:
        told = real(job)
        if job.rank == 1:
            told["locality"][part] = "another"
        return told

    monkeypatch.setattr(rendezvous, "_identity", identity)
    for error in meet_all(ranks):
        assert isinstance(error, UnsupportedError)
        assert f"the {part} of rank 1 differs from rank 0's; {locality.REMEDIES[part]}" in str(error)


@contextmanager
def taken(job: Job, *, by: int) -> Iterator[None]:
    """A process of the user `by` listens where rank 0 would. Each process pretends to be of a user of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, pytest.MonkeyPatch.context() as patch:
        other.bind(rendezvous._address(job))
        other.listen()
        patch.setattr(rendezvous, "user_of", lambda connection: by)
        yield


def test_a_name_that_another_user_took_is_reported_at_once() -> None:
    """Torchrun sets no secret, so the name follows from what everyone on the host can see or guess."""
    ranks, other = jobs(2), os.geteuid() + 1
    with taken(ranks[0], by=other):
        for error in meet_all(ranks, timeout=60.0):
            assert isinstance(error, UnsupportedError)
            assert f"a process of user {other} already listens" in str(error)
            assert "start the ranks with `rankwise run`" in str(error)
            assert "RANKWISE_SECRET to a new random text" in str(error)
    assert same_segment(meet_all(ranks))


def test_the_name_cannot_be_taken_without_the_secret() -> None:
    ranks = jobs(2, secret=b"only we know")
    with taken(replace(ranks[0], secret=b""), by=os.geteuid()):
        assert same_segment(meet_all(ranks))


def test_a_peer_of_another_user_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = jobs(2)
    monkeypatch.setattr(rendezvous, "user_of", lambda connection: os.geteuid() + 1)
    first, second = meet_all(ranks, timeout=0.5)
    assert isinstance(first, CollectiveTimeout)
    assert isinstance(second, UnsupportedError)


def test_a_job_without_an_id_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"test gives the job no id to meet by"):
        rendezvous.meet(jobs(2, id="")[0], 1.0)


PROGRAM = "import rankwise as rw; g = rw.init(); print(g.rank, g.world_size, g.backend, g.all_reduce(1))"


def test_processes_under_a_foreign_launcher() -> None:
    """As under torchrun: the environment gives the ranks, and nothing is inherited."""
    name = str(uuid.uuid4())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "3",
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "3",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29500",
                "TORCHELASTIC_RUN_ID": name,
                "RANKWISE_TIMEOUT": "30",
            },
        )
        for rank in range(3)
    ]
    told = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
    assert told == [f"{rank} 3 shm 3" for rank in range(3)]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
