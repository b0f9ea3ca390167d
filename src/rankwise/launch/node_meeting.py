"""How the launchers of a job on several nodes meet: all others connect to node 0, which numbers the ranks.

If a launcher is lost before all have come, it may be started again. A connection whose first line is not a hello is
closed, and does not disturb the others. `nodes` documents the messages.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping

from rankwise.contract.ranks import ranks_in_words
from rankwise.launch.nodes import Address, Nodes
from rankwise.meeting.connection import LONGEST, PATIENCE, Connection

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import Any

LONGER = 1.0  # seconds for which the others wait beyond their timeout: node 0's answer says who is missing
RETRY = 0.1  # seconds between two attempts to reach node 0
NOTE_AFTER = 2.0  # seconds after which node 0, and a launcher that cannot reach it, say for whom they wait
LONGEST_HELLO = 4096  # bytes


class Hello:
    """The first message of a launcher. node: its number; nodes: how many the job has; ranks: how many this one has.

    min_ranks: how many ranks must be left for the job to go on after a loss, or None if every loss ends it.
    """

    def __init__(
        self, version: str, node: int, nodes: int, ranks: int, host: str, min_ranks: int | None = None
    ) -> None:
        self.version = version
        self.node = node
        self.nodes = nodes
        self.ranks = ranks
        self.host = host
        self.min_ranks = min_ranks

    @classmethod
    def own(cls, node: int, nodes: int, ranks: int, min_ranks: int | None = None) -> Hello:
        from importlib.metadata import version  # slow to import

        return cls(version("rankwise"), node, nodes, ranks, socket.gethostname(), min_ranks)

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Hello | None:
        """The hello that this message contains; None if there is no valid one."""
        fields = message.get("hello")
        try:
            hello = cls(**fields)  # type: ignore[arg-type]  # a TypeError if it is no dict with these keys
        except TypeError:
            return None
        kinds = {"version": str, "node": int, "nodes": int, "ranks": int, "host": str}
        right = all(isinstance(getattr(hello, name), kind) for name, kind in kinds.items())
        right = right and isinstance(hello.min_ranks, (int, type(None)))
        return hello if right and hello.node >= 0 and hello.ranks > 0 else None

    def misfit(self, other: Hello, came: Mapping[int, Hello]) -> str:
        """Why `other` cannot join this node 0 and the nodes that came before it; "" if it can."""
        who = f"node {other.node} ({other.host})"
        if other.version != self.version:
            here = f"node 0 ({self.host}) runs rankwise {self.version}"
            return f"{who} runs rankwise {other.version}, {here}: expected the same version on all nodes"
        if other.nodes != self.nodes:
            here = f"node 0 ({self.host}) with --nnodes {self.nodes}"
            return f"{who} was started with --nnodes {other.nodes}, {here}: expected the same number on all nodes"
        if other.min_ranks != self.min_ranks:
            theirs, ours = (
                "without --keep-going" if least is None else f"with --min-ranks {least}"
                for least in (other.min_ranks, self.min_ranks)
            )
            return f"{who} was started {theirs}, node 0 ({self.host}) {ours}: expected the same on all nodes"
        if other.node >= self.nodes:
            return f"--node-rank {other.node} on {other.host}: expected 0 to {self.nodes - 1}, because of --nnodes"
        if other.node == 0 or other.node in came:
            first = self if other.node == 0 else came[other.node]
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

    Raises TimeoutError after `timeout` seconds: on node 0 it names the nodes that did not come, on another node it says
    that node 0 could not be reached. Raises ValueError if the launchers do not fit together, and also on the nodes that
    have come if node 0 gives up. Raises OSError if node 0 cannot listen at the address.
    """
    hello = Hello.own(node, nodes, ranks, min_ranks)
    if node == 0:
        return _gather(hello, address, timeout, note, spans)
    return _join(hello, address, timeout, note, spans)


class _Gathering:
    """Node 0's side of the rendezvous. It serves all connections at once, so that none can delay the others."""

    def __init__(self, own: Hello, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        self.came: dict[int, tuple[Hello, Connection]] = {}
        """The nodes that have said hello."""
        self._own = own
        self._listener = listener
        self._selector = selector
        self._silent: dict[Connection, float] = {}  # connections without a hello yet: until when they may wait
        selector.register(listener, selectors.EVENT_READ)

    @property
    def missing(self) -> str:
        """'node 3 of 4'; "" if all have come."""
        numbers = set(range(1, self._own.nodes)) - set(self.came)
        return f"{ranks_in_words(numbers, 'node')} of {self._own.nodes}" if numbers else ""

    def step(self) -> None:
        """Serve the connections for a moment. Raises ValueError if a launcher does not fit."""
        now = time.monotonic()
        for connection in [connection for connection, end in self._silent.items() if end < now]:
            self._drop(connection)
        for key, _ in self._selector.select(0.2):
            if key.fileobj is self._listener:
                self._accept(now + PATIENCE)
            else:
                self._read(key.data)

    def refuse(self, why: str) -> None:
        """Send all nodes that have come the reason why the job cannot start."""
        for _, connection in self.came.values():
            connection.send(refused=why)

    def close(self) -> None:
        for connection in (*self._silent, *(connection for _, connection in self.came.values())):
            connection.close()

    def close_silent(self) -> None:
        for connection in list(self._silent):
            self._drop(connection)

    def _accept(self, end: float) -> None:
        try:
            connection = Connection(self._listener.accept()[0])
        except OSError:
            return  # the other side has closed it already
        connection.limit = LONGEST_HELLO
        self._silent[connection] = end
        self._selector.register(connection, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        messages = connection.receive()
        if messages == []:
            return
        hello = Hello.parse(messages[0]) if messages and connection in self._silent else None
        if hello is None:  # a stranger, or a launcher that has ended before all have come
            self._drop(connection)
        elif why := self._own.misfit(hello, {node: other for node, (other, _) in self.came.items()}):
            connection.send(refused=why)
            raise ValueError(why)
        else:
            del self._silent[connection]
            connection.limit = LONGEST
            self.came[hello.node] = hello, connection

    def _drop(self, connection: Connection) -> None:
        self._silent.pop(connection, None)
        self.came = {node: come for node, come in self.came.items() if come[1] is not connection}
        self._selector.unregister(connection)
        connection.close()


def _gather(own: Hello, address: Address, timeout: float, note: Callable[[str], object], spans: bool) -> Nodes:
    """On node 0: wait for all others, and answer them."""
    start = time.monotonic()
    where = f"{address[0]}:{address[1]}"
    noted = False
    with _listener(address) as listener, selectors.DefaultSelector() as selector:
        gathering = _Gathering(own, listener, selector)
        try:
            while missing := gathering.missing:
                now = time.monotonic()
                if now > start + timeout:
                    raise TimeoutError(f"{missing} did not come to {where} within {timeout:g} s")
                if not noted and now > start + NOTE_AFTER:
                    note(f"waiting for {missing} at {where}")
                    noted = True
                gathering.step()
            port = _reserved(listener)
        except BaseException as error:
            if isinstance(error, (OSError, ValueError)):
                gathering.refuse(str(error))
            gathering.close()
            raise
        gathering.close_silent()
    came = gathering.came
    sizes = [own.ranks, *(came[node][0].ranks for node in range(1, own.nodes))]
    master, secret = (address[0], port.getsockname()[1]), os.urandom(16).hex()
    for _, connection in came.values():
        connection.send(place={"sizes": sizes, "port": master[1], "secret": secret, "spans": spans})
    hosts = {node: hello.host for node, (hello, _) in came.items()}
    connections = {node: connection for node, (_, connection) in came.items()}
    return Nodes(0, sizes, hosts, master, secret, connections, port, min_ranks=own.min_ranks, spans=spans)


def _join(own: Hello, address: Address, timeout: float, note: Callable[[str], object], spans: bool) -> Nodes:
    """On every other node: connect to node 0, and wait for its answer."""
    start = time.monotonic()
    where = f"{address[0]}:{address[1]}"
    noted = False
    reason = ""
    while (left := start + timeout - time.monotonic()) > 0:
        try:
            connection = Connection(socket.create_connection(address, min(left, PATIENCE)))
        except OSError as error:
            reason = f" ({error.strerror or error})"
        else:
            answer = _introduce(own, connection, start + timeout + LONGER)
            if answer is None:
                answer = {"refused": f"not all nodes came to {where} within {timeout:g} s"}
            if "refused" in answer:
                connection.close()
                raise ValueError(answer["refused"])
            if "place" in answer:
                place = answer["place"]
                master = (address[0], place["port"])
                return Nodes(
                    own.node,
                    place["sizes"],
                    {},
                    master,
                    place["secret"],
                    {0: connection},
                    min_ranks=own.min_ranks,
                    spans=spans or place["spans"],
                )
            connection.close()
            reason = " (what listens there did not answer as a launcher)"
        if not noted and time.monotonic() > start + NOTE_AFTER:
            note(f"waiting for node 0 at {where}")
            noted = True
        time.sleep(RETRY)
    raise TimeoutError(f"node 0's launcher could not be reached at {where} within {timeout:g} s{reason}")


def _introduce(own: Hello, connection: Connection, end: float) -> dict[str, Any] | None:
    """Say hello. Returns the answer; {} if the connection ends before it comes, None if it has not come by `end`."""
    connection.send(hello=vars(own))
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if selector.select(left):
                messages = connection.receive()
                if messages is None:
                    return {}
                if messages:
                    return messages[0]
    return None


def _listener(address: Address) -> socket.socket:
    family, where = _resolved(address)
    if where[0] in ("127.0.1.1", "::1") and address[0] not in (where[0], "localhost"):
        here = f"{address[0]} is {where[0]} on this host, which other hosts cannot reach"
        raise OSError(f"--rendezvous {address[0]}:{address[1]}: {here}; expected an address that they can reach")
    listener = _bound(family, where)
    listener.listen(socket.SOMAXCONN)
    listener.settimeout(0)
    return listener


def _reserved(listener: socket.socket) -> socket.socket:
    """A socket bound to a free port of the same address. It does not listen, so that rank 0 may."""
    return _bound(listener.family, (listener.getsockname()[0], 0, *listener.getsockname()[2:]))


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
