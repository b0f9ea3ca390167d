"""The addresses that gloo's processes need to connect, exchanged all at once, not one by one through a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from rankwise.backends.composed.memory import packed, unpacked

WORD = 8  # bytes of each of gloo's numbers


@cache
def roster_type() -> type[Any]:
    """The class Roster: Roster(gather).

    It holds what the ranks of one group know of each other, in the form of a store for torch. While gloo connects the
    ranks of a group, each of them writes its address and one number for each other rank to a store, and reads what all
    others have written. Here, the first `wait` exchanges what each rank has set; from then on, all ranks can get it.
    failure: what that raised, which torch may convert to another error.
    """
    from torch._C._distributed_c10d import Store

    class Roster(Store):
        def __init__(self, gather: Callable[[bytes], list[bytes]]) -> None:
            """gather: a collective, called once: this rank's value -> all ranks' values."""
            super().__init__()
            self.failure: BaseException | None = None
            self._gather: Callable[[bytes], list[bytes]] | None = gather
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self._values[key] = shortened(value.encode() if isinstance(value, str) else value)

        def wait(self, keys: list[str], timeout: object = None) -> None:
            if self._gather is None:
                return
            gather, self._gather = self._gather, None  # it references the group that is being split
            items = [part for key, value in self._values.items() for part in (key.encode(), value)]
            try:
                for value in gather(packed(items)):
                    pairs = unpacked(value)
                    self._values.update(zip(map(bytes.decode, pairs[::2]), pairs[1::2], strict=True))
            except BaseException as error:
                self.failure = error
                raise

        def get(self, key: str) -> bytes:
            self.wait([key])
            return lengthened(self._values[key])

        def clear(self) -> None:
            """Free what was exchanged: torch keeps the store as long as the group."""
            self._values = {}

    return Roster


def shortened(value: bytes) -> bytes:
    """`value` without the consecutive numbers at its end, with which gloo numbers its connections to the ranks."""
    words = np.frombuffer(value[len(value) % WORD :], np.int64)
    jumps = np.flatnonzero(np.diff(words) != 1)
    count = int(jumps[-1]) + 2 if jumps.size else 1
    rest = words.size - count
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
