"""The store in which ranks that cannot reach each other yet leave what the others need, as rank 0 sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable


class Missing(TimeoutError):
    """Values were not there in time. keys: the keys of these values."""

    def __init__(self, keys: Iterable[str], why: str = "no answer") -> None:
        super().__init__(why)
        self.keys = list(keys)


class Store(ABC):
    """Values under keys, the same for all processes that meet.

    Only who knows the job's secret gets in, unless the store is torch's, which has no such check. A deadline is a time
    of time.monotonic, after which Missing is raised. ConnectionError: the store cannot be reached, or has ended.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None: ...

    @abstractmethod
    def wait(self, keys: Iterable[str], deadline: float) -> list[bytes]:
        """Wait until all values are there, and get them."""
