"""A TCPStore that counts its requests: a proxy which reads torch's protocol in front of a real store."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from typing import BinaryIO

# torch's TCPStoreBackend.hpp: the name of each request, and what follows its first byte. k: a key or a value, of which
# 8 bytes give the length; n: 8 bytes with a number of keys, then the keys; p: the same, each with a value.
REQUESTS = {
    0: ("validate", "4"),
    1: ("set", "kk"),
    2: ("compare_set", "kkk"),
    3: ("get", "k"),
    4: ("add", "k8"),
    5: ("check", "n"),
    6: ("wait", "n"),
    7: ("num_keys", ""),
    8: ("delete_key", "k"),
    9: ("append", "kk"),
    10: ("multi_get", "n"),
    11: ("multi_set", "p"),
    12: ("cancel_wait", ""),
    13: ("ping", "4"),
}
GREETING = ("validate", "ping")  # what a client sends when it connects


class CountingStore:
    """Serves a store at 127.0.0.1:`port` until it is closed. requests: how many requests came, by name."""

    def __init__(self) -> None:
        from torch._C._distributed_c10d import TCPStore

        self.requests: Counter[str] = Counter()
        self.connections = 0
        self._store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def total(self) -> int:
        """The number of requests, without the ones that a client sends when it connects."""
        return sum(count for name, count in self.requests.items() if name not in GREETING)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._store.port))
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=_answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client.makefile("rb") as source:
            while head := source.read(1):
                name, parts = REQUESTS[head[0]]
                self.requests[name] += 1
                server.sendall(head + b"".join(_part(source, part) for part in parts))
        server.close()


def _part(source: BinaryIO, part: str) -> bytes:
    if part.isdigit():
        return source.read(int(part))
    head = source.read(8)
    (number,) = struct.unpack("<Q", head)
    if part == "k":
        return head + source.read(number)
    each = "kk" if part == "p" else "k"
    return head + b"".join(_part(source, kind) for _ in range(number) for kind in each)


def _answers(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(1 << 16):
            client.sendall(data)
    client.close()
