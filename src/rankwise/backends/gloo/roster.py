"""The addresses that gloo's processes need to connect, exchanged all at once, not one by one through a store.

While gloo connects the ranks of a group, each of them writes its address and one number for each other rank to a
store, and reads what all others have written. Here, a Roster serves as this store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from rankwise.backends.composed.opening import packed, unpacked

Gather = Callable[[bytes], list[bytes]]  # a collective: this rank's value -> all ranks' values

WORD = 8  # bytes of each of gloo's numbers


class Roster:
    """The ranks of one group: their addresses, in the form of a store for torch, and a text from each rank."""

    def __init__(self, gather: Gather, text: str) -> None:
        """gather: called once, when `store` or `texts` is first read. text: this rank's text."""
        self.failure: BaseException | None = None  # what `gather` raised, which torch may convert to another error
        self.store: Any = _store_type()(self._gathered)
        self._gather, self._text = gather, text
        self._texts: list[str] = []

    def texts(self) -> list[str]:
        """The texts of all ranks, by rank."""
        self.store.wait([])
        return self._texts

    def _gathered(self, mine: dict[str, bytes]) -> dict[str, bytes]:
        """What this rank has set -> what all ranks have set."""
        everything: dict[str, bytes] = {}
        items = [part for key, value in mine.items() for part in (key.encode(), value)]
        try:
            for value in self._gather(packed([self._text.encode(), *items])):
                text, *theirs = unpacked(value)
                self._texts.append(text.decode())
                everything.update(zip(map(bytes.decode, theirs[::2]), theirs[1::2], strict=True))
        except BaseException as error:
            self.failure = error
            raise
        return everything


@cache
def _store_type() -> type[Any]:
    from torch._C._distributed_c10d import Store

    class GatheredStore(Store):
        """The first `wait` exchanges what each rank has set; from then on, all ranks can get it."""

        def __init__(self, exchange: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
            super().__init__()
            self._exchange: Callable[[dict[str, bytes]], dict[str, bytes]] | None = exchange
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self._values[key] = shortened(value.encode() if isinstance(value, str) else value)

        def wait(self, keys: list[str], timeout: object = None) -> None:
            if self._exchange is not None:
                exchange, self._exchange = self._exchange, None  # it references the group that is being split
                self._values = exchange(self._values)

        def get(self, key: str) -> bytes:
            self.wait([key])
            return lengthened(self._values[key])

        def has_extended_api(self) -> bool:
            return False

        def clear(self) -> None:
            """Free the addresses: torch keeps the store as long as the group."""
            self._values = {}

    return GatheredStore


def shortened(value: bytes) -> bytes:
    """`value` without the consecutive numbers at its end, with which gloo numbers its connections to the ranks."""
    words = np.frombuffer(value[len(value) % WORD :], np.int64)
    jumps = np.flatnonzero(np.diff(words) != 1)
    kept = int(jumps[-1]) + 2 if jumps.size else 1
    rest = words.size - kept
    if rest < 1:
        return bytes([0]) + value
    return bytes([1]) + rest.to_bytes(WORD, "little") + value[: len(value) - rest * WORD]


def lengthened(short: bytes) -> bytes:
    """The reverse of `shortened`."""
    if not short[0]:
        return short[1:]
    rest, head = int.from_bytes(short[1 : 1 + WORD], "little"), short[1 + WORD :]
    last = np.frombuffer(head[-WORD:], np.int64)
    return head + (last + np.arange(1, 1 + rest)).tobytes()
