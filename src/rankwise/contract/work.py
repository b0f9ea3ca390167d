"""The handle of an operation that may still be under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


class Work(ABC, Generic[T]):
    """One asynchronous operation.

    Its buffers belong to it until `wait` has returned or `done` has said True. Safe to use from
    any thread.
    """

    @abstractmethod
    def wait(self, timeout: float | None = None) -> T:
        """Block until the operation is complete and give its result.

        timeout: seconds; None means the communicator's own limit. Raises CollectiveTimeout past
        it (the operation stays pending where nothing was lost), and what the operation raised.
        """

    @abstractmethod
    def done(self) -> bool:
        """True when the operation is complete or has failed; never blocks."""

    def result(self) -> T:
        """What the operation gives; blocks as `wait` does."""
        return self.wait()
