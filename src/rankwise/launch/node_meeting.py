"""How the launchers of a job on several nodes meet: all others connect to node 0, which numbers the ranks.

Node 0 serves a store at the rendezvous, in which every launcher leaves a hello. RANKWISE_SECRET, if it is set, keeps
everybody else out. If a launcher is lost before all have come, it may be started again. Afterwards the connections
carry the messages that `nodes` documents.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from rankwise.contract.ranks import ranks_in_words
from rankwise.launch.nodes import Address, Nodes
from rankwise.meeting.connection import Connection, kept_alive
from rankwise.meeting.gathering import Late, join, lead, opened
from rankwise.meeting.served_store import StoreClient, StoreServer
from rankwise.system.settings import Settings


@dataclass
class Hello:
    """What a launcher says of itself. node: its number; nodes: how many the job has; ranks: how many this one has.

    min_ranks: how many ranks must be left for the job to go on after a loss, or None if every loss ends it.
    """

    version: str
    node: int
    nodes: int
    ranks: int
    host: str
    min_ranks: int | None = None

    @classmethod
    def own(cls, node: int, nodes: int, ranks: int, min_ranks: int | None = None) -> Hello:
        return cls(version("rankwise"), node, nodes, ranks, socket.gethostname(), min_ranks)

    @classmethod
    def parse(cls, value: bytes) -> Hello | None:
        """The hello that this JSON contains; None if there is no valid one."""
        try:
            hello = cls(**json.loads(value))  # a TypeError if it is no dict with these keys
        except (ValueError, TypeError, RecursionError):
            return None
        kinds = {"version": str, "node": int, "nodes": int, "ranks": int, "host": str}
        right = all(isinstance(getattr(hello, name), kind) for name, kind in kinds.items())
        right = right and isinstance(hello.min_ranks, (int, type(None)))
        return hello if right and hello.node >= 0 and hello.ranks > 0 else None

    def other_version(self, key: str, value: bytes) -> str:
        """Why the launcher that sent this hello cannot join this node 0, if it is another version's; else "".

        version, node and host are all that the hello of another version need have.
        """
        try:
            given = json.loads(value)
            version, node, host = given["version"], given["node"], given["host"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return ""
        if version == self.version or not isinstance(version, str) or not isinstance(host, str) or key != str(node):
            return ""
        this_node = f"node 0 ({self.host}) runs rankwise {self.version}"
        return f"node {node} ({host}) runs rankwise {version}, {this_node}: expected the same version on all nodes"

    def misfit(self, other: Hello, first: Hello | None) -> str:
        """Why `other` cannot join this node 0; "" if it can. first: who has come with the same number."""
        who = f"node {other.node} ({other.host})"
        if other.nodes != self.nodes:
            this_node = f"node 0 ({self.host}) with --nnodes {self.nodes}"
            return f"{who} was started with --nnodes {other.nodes}, {this_node}: expected the same number on all nodes"
        if other.min_ranks != self.min_ranks:
            others, own = (
                "without --keep-going" if least is None else f"with --min-ranks {least}"
                for least in (other.min_ranks, self.min_ranks)
            )
            return f"{who} was started {others}, node 0 ({self.host}) {own}: expected the same on all nodes"
        if other.node >= self.nodes:
            return f"--node-rank {other.node} on {other.host}: expected 0 to {self.nodes - 1}, because of --nnodes"
        if first is not None:
            where = f"on {first.host} and on {other.host}"
            return f"two launchers have --node-rank {other.node}, {where}: expected a different number for each"
        return ""


def meet(
    address: Address,
    nodes: int,
    node: int,
    ranks: int,
    timeout: float,
    note: Callable[[str], object],
    *,
    min_ranks: int | None = None,
    spans: bool = False,
) -> Nodes:
    """Meet the launchers of the other nodes. note: is called with a line for the user if some do not come soon.

    min_ranks: as in Hello. spans: whether this node needs the spans of rankwise.trace. If node 0 does, all record them.

    Raises TimeoutError after `timeout` seconds, which names the nodes that did not come, and ValueError if the
    launchers do not fit together, both also on the nodes that have come. Raises OSError if node 0 cannot listen at the
    address.
    """
    hello = Hello.own(node, nodes, ranks, min_ranks)
    where = f"{address[0]}:{address[1]}"

    def who(missing: Sequence[int]) -> str:
        return f"{ranks_in_words(missing, 'node')} of {nodes}"

    def late(missing: Sequence[int], reason: str) -> TimeoutError:
        why = f" ({reason})" if reason else ""
        return TimeoutError(f"{who(missing)} did not come to {where} within {timeout:g} s{why}")

    meet_others = _host if node == 0 else _join
    end = time.monotonic() + timeout
    return meet_others(hello, address, end, late, lambda missing: note(f"waiting for {who(missing)} at {where}"), spans)


def _host(
    own: Hello, address: Address, end: float, late: Late, note: Callable[[list[int]], object], spans: bool
) -> Nodes:
    """On node 0: wait for all others, and answer them."""
    others: list[Hello] = []
    port: list[socket.socket] = []

    def accepts(key: str, value: bytes, previous: bytes | None) -> bool:
        if why := own.other_version(key, value):  # before anything else, in which versions may differ
            raise ValueError(why)
        hello = Hello.parse(value)
        if hello is None or key != str(hello.node):
            return False
        first = own if hello.node == 0 else Hello.parse(previous or b"")
        if why := own.misfit(hello, first):
            raise ValueError(why)
        return True

    def decide(hellos: list[bytes]) -> bytes:
        others.extend(filter(None, map(Hello.parse, hellos)))
        # A socket bound to a free port of the same address. It does not listen, so that rank 0 may.
        port.append(_bound(listener.family, (listener.getsockname()[0], 0, *listener.getsockname()[2:])))
        sizes = [own.ranks, *(hello.ranks for hello in others)]
        place = {"sizes": sizes, "port": port[0].getsockname()[1], "secret": os.urandom(16).hex(), "spans": spans}
        return json.dumps(place).encode()

    with _listener(address) as listener, closing(StoreServer(listener, Settings.read().secret, accepts)) as server:
        place = lead(server, {0: b""}, own.nodes, end, late, decide, note)
        connections = {int(key): connection for key, connection in server.detach().items()}
    hosts = {hello.node: hello.host for hello in others}
    return _nodes(own, address, place, hosts, connections, port[0], spans)


def _join(
    own: Hello, address: Address, end: float, late: Late, note: Callable[[list[int]], object], spans: bool
) -> Nodes:
    """On every other node: connect to node 0, and wait for its answer."""

    def connect(deadline: float) -> StoreClient:
        left = max(0.001, end - time.monotonic())
        return StoreClient(kept_alive(socket.create_connection(address, left)), Settings.read().secret, deadline)

    client, answer = join(connect, own.node, json.dumps(vars(own)).encode(), end, late, note)
    try:
        place = opened(answer)
    except BaseException:
        client.close()
        raise
    return _nodes(own, address, place, {}, {0: client.connection}, None, spans)


def _nodes(
    own: Hello,
    address: Address,
    answer: bytes,
    hosts: Mapping[int, str],
    connections: Mapping[int, Connection],
    port: socket.socket | None,
    spans: bool,
) -> Nodes:
    place = json.loads(answer)
    return Nodes(
        own.node,
        place["sizes"],
        hosts,
        (address[0], place["port"]),
        place["secret"],
        connections,
        port,
        min_ranks=own.min_ranks,
        spans=spans or place["spans"],
    )


def _listener(address: Address) -> socket.socket:
    family, where = _resolved(address)
    if where[0] in ("127.0.1.1", "::1") and address[0] not in (where[0], "localhost"):
        bound = f"{address[0]} is {where[0]} on this host, which other hosts cannot reach"
        raise OSError(f"--rendezvous {address[0]}:{address[1]}: {bound}; expected an address that they can reach")
    listener = kept_alive(_bound(family, where))
    listener.listen(socket.SOMAXCONN)
    return listener


def _resolved(address: Address) -> tuple[int, tuple[Any, ...]]:
    try:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OSError(f"--rendezvous {address[0]}:{address[1]}: {error.strerror}") from None
    return family, where


def _bound(family: int, where: tuple[Any, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError as error:
        bound.close()
        raise OSError(f"node 0 cannot listen at {where[0]}:{where[1]}, the rendezvous: {error.strerror}") from None
    return bound
