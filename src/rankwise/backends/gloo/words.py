"""Integers in the job's store, which its server changes for the ranks."""

from __future__ import annotations

from rankwise.contract.words import SharedWords
from rankwise.meeting.torch_store import TorchStore


class StoreWords(SharedWords):
    """The values that ranks give a word by swap_if must differ from each other."""

    def __init__(self, store: TorchStore, number: int) -> None:
        """store: a part of the job's store that holds nothing else."""
        self._store = store
        for index in range(number):
            store.add(str(index), 0)  # so that it is there, whichever rank comes first

    def add(self, index: int, n: int) -> int:
        return self._store.add(str(index), n) - n

    def swap_if(self, index: int, before: int, after: int) -> bool:
        return int(self._store.compare_set(str(index), str(before), str(after))) == after
