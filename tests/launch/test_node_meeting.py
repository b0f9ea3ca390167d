"""How the launchers of several nodes meet."""

from __future__ import annotations

import hmac
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from launch.launchers import HOST, free_port
from rankwise.launch.node_meeting import Hello, meet
from rankwise.launch.nodes import Nodes
from rankwise.meeting import gathering
from rankwise.meeting.served_store import StoreClient


class Meeting:
    """Launchers' `meet` in threads of this process."""

    def __init__(self) -> None:
        self.port = free_port()
        self.found: dict[int, Nodes | Exception] = {}
        self.notes: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(
        self, node: int, nnodes: int = 2, *, n: int = 1, timeout: float = 30.0, min_ranks: int | None = None
    ) -> None:
        key = len(self._threads)

        def run() -> None:
            try:
                where = ("127.0.0.1", self.port)
                self.found[key] = meet(where, nnodes, node, n, timeout, self.notes.append, min_ranks=min_ranks)
            except (ValueError, OSError) as error:
                self.found[key] = error

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def finish(self) -> list[Nodes | Exception]:
        for thread in self._threads:
            thread.join()
        return [self.found[key] for key in range(len(self._threads))]

    def errors(self) -> list[str]:
        found = self.finish()
        assert all(isinstance(each, Exception) for each in found), found
        return [str(each) for each in found]


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    for each in made.finish():
        if isinstance(each, Nodes):
            for connection in each._connections.values():
                connection.close()
            each.close()


def together(meeting: Meeting) -> None:
    sizes = [each.sizes for each in meeting.finish() if isinstance(each, Nodes)]
    assert sizes == [[1, 1]] * 2, meeting.found


def test_two_launchers_with_one_number(meeting: Meeting) -> None:
    for node in (0, 1, 1):
        meeting.start(node, 3)
    why = f"two launchers have --node-rank 1, on {HOST} and on {HOST}: expected a different number for each"
    assert set(meeting.errors()) == {why}


def test_different_numbers_of_nodes(meeting: Meeting) -> None:
    meeting.start(0, 2)
    meeting.start(1, 3)
    why = f"node 1 ({HOST}) was started with --nnodes 3, node 0 ({HOST}) with --nnodes 2: "
    why += "expected the same number on all nodes"
    assert set(meeting.errors()) == {why}


@pytest.mark.parametrize("fields", ["the same fields", "another field", "a field less"])
def test_different_versions(meeting: Meeting, monkeypatch: pytest.MonkeyPatch, fields: str) -> None:
    def own(node: int, nodes: int, n: int, least: int | None) -> Hello:
        hello = Hello(f"0.{node}", node, nodes, n, HOST)
        if node == 1 and fields == "another field":
            vars(hello)["since"] = 1
        if node == 1 and fields == "a field less":
            del vars(hello)["ranks"]
        return hello

    assert Hello.own(0, 1, 1).version
    monkeypatch.setattr(Hello, "own", own)
    meeting.start(0)
    meeting.start(1)
    why = f"node 1 ({HOST}) runs rankwise 0.1, node 0 ({HOST}) runs rankwise 0.0: "
    why += "expected the same version on all nodes"
    assert set(meeting.errors()) == {why}


def test_different_rules_for_losses(meeting: Meeting) -> None:
    meeting.start(0, min_ranks=2)
    meeting.start(1)
    why = f"node 1 ({HOST}) was started without --keep-going, node 0 ({HOST}) with --min-ranks 2: "
    why += "expected the same on all nodes"
    assert set(meeting.errors()) == {why}


def test_a_node_that_does_not_come(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "NOTE_AFTER", -1.0)
    meeting.start(2, 4)
    meeting.start(0, 4, timeout=1.0)
    where = f"127.0.0.1:{meeting.port}"
    assert set(meeting.errors()) == {f"nodes 1, 3 of 4 did not come to {where} within 1 s"}
    assert any(re.fullmatch(rf"waiting for nodes 1.*3 of 4 at {where}", note) for note in meeting.notes)


def test_a_node_that_waits_in_vain_for_the_others(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GRACE", 0.0)
    with socket.create_server(("127.0.0.1", meeting.port)):  # a node 0 that does not answer
        meeting.start(1, timeout=0.3)
        why = "what listens there does not answer as this job, or has another RANKWISE_SECRET"
        assert meeting.errors() == [f"node 0 of 2 did not come to 127.0.0.1:{meeting.port} within 0.3 s ({why})"]


def test_no_node_0(meeting: Meeting) -> None:
    meeting.start(1, timeout=0.3)
    (error,) = meeting.errors()
    where = f"127.0.0.1:{meeting.port}"
    assert error == f"node 0 of 2 did not come to {where} within 0.3 s (Connection refused)"


def test_an_address_that_is_not_this_hosts() -> None:
    with pytest.raises(OSError, match=r"node 0 cannot listen at 192\.0\.2\.1:29500, the rendezvous: Cannot assign"):
        meet(("192.0.2.1", 29500), 2, 0, 1, 1.0, print)


def test_a_name_that_other_hosts_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 29500))]  # as Debian's /etc/hosts has it
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with pytest.raises(OSError, match=r"--rendezvous host-a:29500: host-a is 127\.0\.1\.1 on this host, which other"):
        meet(("host-a", 29500), 2, 0, 1, 1.0, print)


NOT_A_HELLO = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\n",
    b"[" * 3000 + b"\n",
    b"x" * 300_000,
    b"null\n",
    b'{"end": 9}\n',
    b'{"get": ["answer"]}\n',
    b'{"add": ["1", 3]}\n',
    b'{"set": 3}\n',
    b'{"set": {"1": 3}, "get": "answer"}\n',
    b'{"set": {"answer": "M"}}\n',
    *(
        json.dumps({"set": {"1": json.dumps(hello)}}).encode() + b"\n"
        for hello in (
            {"node": 1},
            {"version": 1, "node": 1, "nodes": 2, "ranks": 1, "host": ""},
            {"version": "", "node": -1, "nodes": 2, "ranks": 1, "host": ""},
            {"version": "", "node": 2, "nodes": 2, "ranks": 1, "host": ""},
        )
    ),
]


@pytest.mark.parametrize("knows_the_secret", [False, True])
def test_strangers_do_no_harm(meeting: Meeting, knows_the_secret: bool) -> None:
    meeting.start(0)
    strangers: list[socket.socket] = []
    for text in NOT_A_HELLO:
        stranger = connected(meeting.port)
        strangers.append(stranger)
        nonce = stranger.recv(16)
        with suppress(OSError):  # closed by node 0 already
            if knows_the_secret:
                stranger.sendall(bytes(16) + hmac.digest(b"", b"client" + nonce + bytes(16), "sha256"))
            stranger.sendall(text)
    strangers[-1].close()
    meeting.start(1)
    together(meeting)
    for stranger in strangers:
        stranger.close()


def connected(port: int) -> socket.socket:
    """A connection to node 0, once it listens."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 10)


def test_a_launcher_that_ends_before_all_have_come_may_come_again(meeting: Meeting) -> None:
    meeting.start(0, 3)
    early = StoreClient(connected(meeting.port), b"", time.monotonic() + 10)
    early.connection.send(set={"1": json.dumps(vars(Hello.own(1, 3, 1)))})
    early.connection.shut()
    assert early.connection.arrives(time.monotonic() + 10)
    assert early.connection.receive() is None  # node 0 has noticed
    early.close()
    meeting.start(1, 3)
    meeting.start(2, 3)
    assert [each.sizes for each in meeting.finish() if isinstance(each, Nodes)] == [[1, 1, 1]] * 3, meeting.found


def test_a_launcher_with_another_secret_gets_nothing(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_SECRET", "known to the launchers")
    meeting.start(0)
    with pytest.raises(ConnectionError, match="another RANKWISE_SECRET"):
        StoreClient(connected(meeting.port), b"a guess", time.monotonic() + 10)
    meeting.start(1)
    together(meeting)
