"""Integers in the job's store, which its server changes for the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise.backends.gloo.group_store import GroupStore
from rankwise.contract.errors import RankwiseError
from rankwise.contract.words import SharedWords


class StoreWords(SharedWords):
    """The values that ranks give a word by swap_if must differ from each other."""

    def __init__(
        self, store: GroupStore, name: str, number: int, failed: Callable[[Exception, str], RankwiseError]
    ) -> None:
        """name: of these integers, in this store. failed: fails the group because of an error in this operation, and
        returns what to raise.
        """
        self._store, self._prefix, self._failed = store, f"{store.prefix}{name}/", failed
        for index in range(number):
            self.add(index, 0)  # so that it is there, whichever rank comes first

    def add(self, index: int, n: int) -> int:
        return int(self._ask(lambda store: store.add(f"{self._prefix}{index}", n))) - n

    def swap_if(self, index: int, before: int, after: int) -> bool:
        key = f"{self._prefix}{index}"
        return int(self._ask(lambda store: store.compare_set(key, str(before), str(after)))) == after

    def _ask(self, request: Callable[[Any], Any]) -> Any:
        try:
            return self._store.ask(request, self._store.patience)
        except ConnectionError as error:
            raise self._failed(error, "a counter or lock") from error
