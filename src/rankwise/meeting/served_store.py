"""The store that rank 0 serves to the other ranks, over a TCP port or a unix socket, from both sides.

Rank 0 has no thread for it: it serves all connections at once, so that none can delay the others, whenever it waits for
a value. Before anything else is read, both ends of a connection prove that they know the job's secret: the server sends
a nonce, the client answers with a nonce of its own and an HMAC over both, and the server with another HMAC. As the
nonces are new each time, a recording of an earlier connection proves nothing. Then there are messages:
    client -> server  set: values by key; get: the key of the value that the client waits for
    server -> client  value: what the client waits for, once it is there
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from rankwise.meeting.connection import PATIENCE, Connection, close_all
from rankwise.meeting.store import Missing, Store

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import Any

NONCE = 16  # bytes
PROOF = 32
CHECK_EVERY = 0.2  # seconds between two checks for connections that stay silent


class StoreServer(Store):
    """The store in the process of rank 0, at a listening socket. `close` ends it, with all connections.

    accepts: called with each key and value that a client sets, and the value that is there already or None; if
    it returns False, the client is dropped. left: called with each key that a client has set, when that client is gone;
    the value then disappears. What they raise is raised by the call in which rank 0 waits. trusts: whether a connection
    may be a rank's, before it has said anything.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        accepts: Callable[[str, bytes, bytes | None], bool] = lambda key, value, previous: True,
        left: Callable[[str], object] = lambda key: None,
        trusts: Callable[[socket.socket], bool] = lambda connected: True,
    ) -> None:
        listener.setblocking(False)
        self._listener, self._secret, self._accepts, self._left, self._trusts = listener, secret, accepts, left, trusts
        self._values: dict[str, bytes] = {}
        self._awaited: dict[str, list[Connection]] = {}
        self._clients: dict[Connection, list[str]] = {}  # with the keys that they have set
        self._strangers: dict[Connection, float] = {}  # who has not proved that it knows the secret: its deadline
        self.fds: dict[str, Sequence[int]] = {}
        """By key: the descriptors that go with a value, over a unix socket. The store closes them."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for connection in self._awaited.pop(key, ()):
            connection.send(self.fds.get(key, ()), value=value.decode("latin-1"))

    def wait(self, keys: Iterable[str], deadline: float) -> list[bytes]:
        awaited = list(keys)
        while missing := [key for key in awaited if key not in self._values]:
            now = time.monotonic()
            if now >= deadline:
                raise Missing(missing)
            for silent in [each for each, end in self._strangers.items() if end < now]:
                self._drop(silent)
            for ready, _ in self._selector.select(min(deadline - now, CHECK_EVERY)):
                ready.data()
        return [self._values[key] for key in awaited]

    def detach(self) -> dict[str, Connection]:
        """The connections of the clients, by the keys that these have set. The store serves them no longer."""
        waiting = {key: connection for connection, keys in self._clients.items() for key in keys}
        self._clients = {connection: keys for connection, keys in self._clients.items() if not keys}
        return waiting

    def close(self) -> None:
        for connection in (*self._strangers, *self._clients):
            connection.close()
        for fds in self.fds.values():
            close_all(fds)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return  # the other side has closed it already
        stranger, nonce = Connection(accepted), os.urandom(NONCE)
        self._strangers[stranger] = time.monotonic() + PATIENCE
        self._selector.register(stranger, selectors.EVENT_READ, partial(self._listen_to, stranger, nonce, bytearray()))
        if self._trusts(accepted):
            stranger.write(nonce)
        else:
            self._drop(stranger)

    def _listen_to(self, stranger: Connection, nonce: bytes, said: bytearray) -> None:
        """Nothing that a stranger says is parsed, and no more is read than its proof."""
        said += (part := stranger.read(NONCE + PROOF - len(said)))
        nonces = nonce + said[:NONCE]
        if hmac.compare_digest(said[NONCE:], _proof(self._secret, b"client", nonces)):
            stranger.write(_proof(self._secret, b"server", nonces))
            del self._strangers[stranger]
            self._clients[stranger] = []
            self._selector.modify(stranger, selectors.EVENT_READ, partial(self._read, stranger))
        elif not part or len(said) == NONCE + PROOF:
            self._drop(stranger)

    def _read(self, client: Connection) -> None:
        message = client.receive()
        if message is None or (message and not self._serves(client, message)):
            self._drop(client)

    def _drop(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._strangers.pop(connection, None)
        for key in self._clients.pop(connection, ()):
            self._values.pop(key, None)
            self._left(key)

    def _serves(self, client: Connection, message: Mapping[str, Any]) -> bool:
        """Do what a client asks for. Returns False if it may not, or if it is no request."""
        awaited = str(message.get("get", ""))
        self._awaited.setdefault(awaited, []).append(client)  # first, so that it also learns why it is refused
        given = message.get("set")
        for key, text in given.items() if isinstance(given, dict) else ():
            value = str(text).encode("latin-1", "replace")
            if not self._accepts(key, value, self._values.get(key)):
                return False
            self._clients[client].append(key)
            self.fds[key] = client.take_fds()
            self.set(key, value)
        if awaited in self._values:
            self.set(awaited, self._values[awaited])
        return True


class StoreClient:
    """The store as another rank sees it. It is closed once a value is late, or rank 0 has ended it."""

    def __init__(self, connected: socket.socket, secret: bytes, deadline: float, fds: Sequence[int] = ()) -> None:
        """fds: descriptors that go with the values that this rank sets, over a unix socket.

        Raises ConnectionError, and closes the socket, if the server does not prove that it knows the secret.
        """
        self.connection, self._fds = Connection(connected), fds
        nonce, own_nonce = self._read(NONCE, deadline), os.urandom(NONCE)
        self.connection.write(own_nonce + _proof(secret, b"client", nonce + own_nonce))
        if not hmac.compare_digest(self._read(PROOF, deadline), _proof(secret, b"server", nonce + own_nonce)):
            raise self._ended("what listens there belongs to another job")

    def exchange(self, values: Mapping[str, bytes], key: str, deadline: float) -> bytes:
        """Set these values, and get the one of `key`."""
        self.connection.send(self._fds, set={each: value.decode("latin-1") for each, value in values.items()}, get=key)
        while self.connection.arrives(deadline):
            message = self.connection.receive()
            if message is None:
                raise self._ended("the connection ended")
            if message:
                return str(message.get("value")).encode("latin-1", "replace")
        self.close()
        raise Missing([key])

    def close(self) -> None:
        self.connection.close()

    def _read(self, size: int, deadline: float) -> bytes:
        data = b""
        while (
            len(data) < size and self.connection.arrives(deadline) and (part := self.connection.read(size - len(data)))
        ):
            data += part
        if len(data) < size:
            raise self._ended("what listens there does not answer as this job, or has another RANKWISE_SECRET")
        return data

    def _ended(self, why: str) -> ConnectionError:
        self.close()
        return ConnectionError(why)


def _proof(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, side + nonces, "sha256")
