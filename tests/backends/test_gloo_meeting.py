"""How the ranks of gloo groups meet: the requests to the store, and what the others raise if some do not come."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise._native import version
from rankwise.backends.composed.memory import packed, unpacked
from rankwise.backends.gloo.meeting import _connect_to, gather
from rankwise.backends.gloo.roster import lengthened, roster_type, shortened
from rankwise.contract.errors import CollectiveTimeout, MismatchError
from rankwise.meeting.gathering import opened
from rankwise.meeting.torch_store import OnFirstUse, TorchStore

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(__file__).with_name("meeting_program.py"))


def printed(*command: str) -> list[Any]:
    """The lines of JSON that a Python program prints."""
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


# ---- requests ----


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "hierarchical"])
def test_the_store_gets_four_requests_per_host(backend: str) -> None:
    """When a group opens, however many hosts there are and however many ranks each has; and none for a split."""
    program = str(Path(__file__).with_name("requests_program.py"))
    rows = []
    for hosts, ranks in ((2, 1), (2, 3), (5, 2)):
        rows += printed(program, backend, str(hosts), str(ranks))
    assert [(row["open"], row["split"]) for row in rows] == [(4 * 2, 0), (4 * 2, 0), (4 * 5, 0)]
    assert [row["connections"] for row in rows] == [
        4,
        4,
        10,
    ]  # the first only finds a store


# ---- ranks that do not come ----


@pytest.mark.slow
def test_a_host_that_does_not_come_is_named_on_all_others() -> None:
    (found,) = printed(PROGRAM, "absent host")
    assert sorted(found) == ["0", "1", "2", "3"]
    for kind, missing, text in found.values():
        assert (kind, missing) == ("CollectiveTimeout", [4, 5]), text


@pytest.mark.slow  # it waits for timeouts
def test_a_rank_that_does_not_come_keeps_its_host_from_the_meeting() -> None:
    (found,) = printed(PROGRAM, "absent rank")
    kind, missing, text = found.pop("2")
    assert (kind, missing) == ("CollectiveTimeout", [])
    assert "the 2 ranks of rank 2's host, numbered from 0, could not meet" in text
    assert "rank 1 did not come to init within the timeout of 10 s" in text
    assert sorted(found) == ["0", "1", "4", "5"]
    for kind, missing, text in found.values():
        assert (kind, missing) == ("CollectiveTimeout", [2, 3]), text


@pytest.mark.slow  # it waits for timeouts
def test_a_leader_killed_in_the_meeting() -> None:
    (found,) = printed(PROGRAM, "killed leader")
    kind, lost, text = found.pop("3")
    assert (kind, lost) == ("PeerLostError", [2]), text
    assert "SIGKILL" in text
    assert sorted(found) == ["0", "1", "4", "5"]
    for kind, missing, text in found.values():
        assert (kind, missing) == ("CollectiveTimeout", [2, 3]), text


@pytest.mark.slow  # seven processes
def test_a_host_may_come_late() -> None:
    (found,) = printed(PROGRAM, "late host")
    assert found == {str(rank): 15 for rank in range(6)}


# ---- the parts ----


def in_threads(n: int, function: Callable[[int], Any]) -> list[Any]:
    """What the function returns or raises for each number, called at the same time."""
    results: list[Any] = [None] * n

    def run(number: int) -> None:
        try:
            results[number] = function(number)
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def gathered(n: int, present: list[list[int]], timeout: float) -> list[Any]:
    """What each process gets; each passes the values of some of these ranks."""
    from torch._C._distributed_c10d import HashStore

    connection = OnFirstUse(HashStore)
    end = time.monotonic() + timeout

    def bring(number: int) -> list[bytes]:
        values = {rank: b"%d" % rank * rank for rank in present[number]}
        return gather(TorchStore(connection).under("here"), values, n, timeout, end)

    return in_threads(len(present), bring)


def test_values_of_all_ranks() -> None:
    everybody = [b"%d" % rank * rank for rank in range(6)]
    assert gathered(6, [[0, 3], [1], [2, 5, 4]], 30.0) == [everybody] * 3


def test_every_caller_learns_who_is_missing() -> None:
    for error in gathered(6, [[1, 2], [0], [5]], 1.0):
        assert isinstance(error, CollectiveTimeout), error
        assert (error.missing, error.limit) == ((3, 4), 1.0)


@pytest.mark.parametrize(
    ("hello", "release"), [(b"0.0.9\0...", "rankwise 0.0.9"), (b"...", "another version of rankwise")]
)
def test_ranks_of_other_versions_are_not_accepted(hello: bytes, release: str) -> None:
    from torch._C._distributed_c10d import HashStore

    store = TorchStore(OnFirstUse(HashStore))
    store.set("1", hello)
    with pytest.raises(MismatchError) as caught:
        gather(store, {0: b""}, 2, 30.0, time.monotonic() + 30.0)
    why = f"init: rank 1 runs {release}, and rank 0 runs rankwise {version}: expected the same version"
    assert str(caught.value).startswith(why)
    with pytest.raises(MismatchError, match=re.escape(why)):
        opened(store.get("answer", time.monotonic() + 30.0))


def test_without_rank_0_the_others_say_so() -> None:
    (error,) = gathered(2, [[1]], 0.1)
    assert isinstance(error, CollectiveTimeout)
    assert (error.missing, error.limit) == ((0,), 0.1)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"abc",
        np.arange(5).tobytes(),
        b"name" + np.array([7, 7, 9, 10, 11, 12]).tobytes(),
        b"name" + np.array([3, -2, -1, 0, 1]).tobytes(),
        b"xyz" + np.array([5, 4, 3, 1]).tobytes(),
        np.array([2**63 - 1, -(2**63)]).tobytes(),
    ],
)
def test_shortened_values_are_restored(value: bytes) -> None:
    assert lengthened(shortened(value)) == value


def test_a_short_value_does_not_grow_with_the_ranks() -> None:
    assert len(shortened(b"address" * 20 + np.arange(3, 3 + 10_000).tobytes())) < 200


def test_packed_items_are_restored() -> None:
    for items in ([], [b""], [b"a", b"", b"bcd" * 1000]):
        assert unpacked(packed(items)) == items


def test_what_fails_an_exchange_is_kept() -> None:
    """torch may convert an error that is raised while it connects."""

    def fail(mine: bytes) -> list[bytes]:
        raise CollectiveTimeout("nobody came", limit=1.0)

    roster = roster_type()(fail)
    roster.set("0/0", b"address")
    with pytest.raises(CollectiveTimeout) as caught:
        roster.get("0/1")
    assert caught.value is roster.failure


def test_a_store_is_connected_to_once_and_only_when_used() -> None:
    from torch._C._distributed_c10d import HashStore

    made: list[Any] = []

    def connect() -> Any:
        made.append(HashStore())
        return made[-1]

    store = TorchStore(OnFirstUse(connect)).under("a")
    other = store.under("b")
    assert not made
    other.set("key", b"text")
    assert store.get("b/key", time.monotonic() + 30) == b"text"
    assert not store.check(["key"])
    assert len(made) == 1


def test_a_store_whose_process_has_ended_fails_at_once() -> None:
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1 cannot be reached"):
        _connect_to(("127.0.0.1", 1), 60.0)


@pytest.mark.timeout(50)
def test_a_store_whose_process_ends_while_a_rank_connects_fails_before_the_timeout() -> None:
    def serve(listener: socket.socket) -> None:
        with listener:
            for _ in range(2):  # the plain connection, and torch's client
                listener.accept()[0].close()

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = threading.Thread(target=serve, args=(listener,))
    server.start()
    with pytest.raises(ConnectionError, match=f"{port} cannot be reached"):
        _connect_to(("127.0.0.1", port), 60.0)
    server.join()
