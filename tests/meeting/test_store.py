"""Every store does what the interface says, for the process that serves it and for the others."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeAlias

import pytest

from rankwise.meeting.connection import MOST_FDS, Connection, close_all
from rankwise.meeting.gathering import follow, lead, opened, ranks_late
from rankwise.meeting.served_store import StoreClient, StoreServer
from rankwise.meeting.store import Missing, Store
from rankwise.meeting.torch_store import TorchStore

ANY = bytes(range(256))
Others: TypeAlias = "StoreClient | TorchStore"


def soon() -> float:
    return time.monotonic() + 20


@contextmanager
def served(family: int, address: object, **options: Callable[..., bool]) -> Iterator[tuple[StoreServer, StoreClient]]:
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        with closing(StoreServer(listener, b"secret", **options)) as server:
            end = socket.socket(family)
            end.connect(listener.getsockname())
            made: list[StoreClient] = []
            connecting = threading.Thread(target=lambda: made.append(StoreClient(end, b"secret", soon())))
            with serving(server):
                connecting.start()
                connecting.join()
            with closing(made[0]):
                yield server, made[0]


@contextmanager
def serving(server: Store) -> Iterator[None]:
    """Meanwhile the process that serves the store waits for a value, as far as it has to serve."""
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            with pytest.raises(Missing):
                server.wait(["nothing"], time.monotonic() + 0.01)

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()


@contextmanager
def torch_stores() -> Iterator[tuple[TorchStore, TorchStore]]:
    distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")
    store = distributed.HashStore()
    yield TorchStore(lambda: store, "a/"), TorchStore(lambda: store).under("a")


@pytest.fixture(params=["tcp", "unix", "torch"])
def stores(request: pytest.FixtureRequest) -> Iterator[tuple[Store, Others]]:
    """A store as rank 0 sees it, and as another rank does."""
    makers = {
        "tcp": lambda: served(socket.AF_INET, ("127.0.0.1", 0)),
        "unix": lambda: served(socket.AF_UNIX, b"\0rankwise-test-" + os.urandom(8).hex().encode()),
        "torch": torch_stores,
    }
    with makers[request.param]() as made:
        yield made


def test_values_of_the_others(stores: tuple[Store, Others]) -> None:
    own, other = stores
    with serving(own):
        assert other.exchange({"key": ANY}, "key", soon()) == ANY
    assert own.wait(["key"], soon()) == [ANY]
    with pytest.raises(Missing) as caught:
        own.wait(["key", "absent", "too"], time.monotonic() + 0.05)
    assert caught.value.keys == ["absent", "too"]


def test_values_of_rank_0(stores: tuple[Store, Others]) -> None:
    own, other = stores
    own.set("first", ANY)
    late = threading.Timer(0.1, lambda: own.set("second", b""))
    late.start()
    with serving(own):
        late.join()
        assert other.exchange({}, "second", soon()) == b""
        assert other.exchange({"third": b"3", "fourth": b"4"}, "first", soon()) == ANY
    assert own.wait(["third", "fourth"], soon()) == [b"3", b"4"]
    with serving(own), pytest.raises(Missing):
        other.exchange({}, "absent", time.monotonic() + 0.05)


def test_sums() -> None:
    with torch_stores() as (own, other):
        assert other.add("sum", 3) == 3
        assert own.add("sum", -1) == 2
        assert other.get("sum", soon()) == b"2"


def test_ranks_meet(stores: tuple[Store, Others]) -> None:
    own, other = stores
    answers: list[bytes] = []
    joining = threading.Thread(target=lambda: answers.append(opened(follow(other, {2: b"c", 1: b"b"}, soon()))))
    joining.start()
    answer = lead(own, {0: b"a"}, 3, soon(), ranks_late(20.0), b"".join)
    joining.join()
    assert (answer, answers) == (b"abc", [b"abc"])


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError("none left"), OSError("no port")])
def test_the_error_of_rank_0_is_raised_by_all(error: Exception, stores: tuple[Store, Others]) -> None:
    own, other = stores
    sent: list[bytes] = []
    joining = threading.Thread(target=lambda: sent.append(follow(other, {1: b""}, soon())))
    joining.start()

    def decide(values: list[bytes]) -> bytes:
        raise error

    with pytest.raises(type(error), match=str(error)):
        lead(own, {0: b""}, 2, soon(), ranks_late(20.0), decide)
    joining.join()
    with pytest.raises(type(error), match=str(error)):
        opened(sent[0])


def test_a_value_that_is_not_accepted_drops_its_client() -> None:
    with served(socket.AF_INET, ("127.0.0.1", 0), accepts=lambda key, *values: key == "right") as (own, other):
        with serving(own):
            assert other.exchange({"right": b"1"}, "right", soon()) == b"1"
            with pytest.raises(ConnectionError):
                other.exchange({"wrong": b"2"}, "right", soon())
        with pytest.raises(Missing):  # a value disappears with the client that set it
            own.wait(["right"], 0.0)


def test_descriptors_go_with_values() -> None:
    """More than fit into one packet."""
    fds: Sequence[int] = [os.memfd_create("rankwise test") for _ in range(MOST_FDS + 3)]
    with served(socket.AF_UNIX, b"\0rankwise-test-" + os.urandom(8).hex().encode()) as (own, other):
        assert isinstance(own, StoreServer)
        own.fds["key"] = fds
        own.set("key", ANY)
        own.set("plain", b"")
        with serving(own):
            assert other.exchange({}, "key", soon()) == ANY
            taken = other.connection.take_fds()
            assert other.exchange({}, "plain", soon()) == b""
        assert [os.fstat(fd).st_ino for fd in taken] == [os.fstat(fd).st_ino for fd in fds]
        assert other.connection.take_fds() == []
        close_all(taken)


def test_messages_arrive_one_by_one_and_whole() -> None:
    left, right = socket.socketpair()
    sender, receiver = Connection(left), Connection(right)
    sender.write(b'{"first": 1}\n{"second": ')
    assert [receiver.receive(), receiver.receive()] == [{"first": 1}, {}]
    assert not receiver.arrives(0.0)
    sender.write(b"2}\n")
    assert receiver.receive() == {"second": 2}
    sender.close()
    assert receiver.receive() is None
    receiver.close()
