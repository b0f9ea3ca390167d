"""Messages between two ranks: what receives match, and receives of messages of any length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from rankwise.contract.errors import CollectiveTimeout, UnsupportedError, too_late
from rankwise.contract.public import public
from rankwise.contract.types import DType
from rankwise.contract.work import Work


class Wildcard(IntEnum):
    """`rw.ANY`: as src of a receive it means any rank, as tag any tag.

    Example:
        >>> sending = group.isend(1.5, dst=group.rank, tag=8)
        >>> group.recv_any(src=rw.ANY, tag=rw.ANY).data.item()
        1.5
    """

    ANY = -1

    def __repr__(self) -> str:
        return "rw.ANY"


ANY = Wildcard.ANY


@public
@dataclass(frozen=True)
class Message:
    """A message that can be received: its source, tag, number of elements and dtype.

    Example:
        >>> sending = group.isend(np.zeros(4, np.float32), dst=group.rank)
        >>> group.probe(timeout=10) == rw.Message(group.rank, 0, 4, rw.DType.F32)
        True
        >>> group.recv((4,), group.rank, dtype="float32").tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    source: int
    tag: int
    count: int
    dtype: DType


class IncomingMessage(NamedTuple):
    """A message that a communicator is receiving.

    memory: its bytes, writable, by the buffer protocol; it holds the data once `work` is done. source, tag, dtype: the
    message's.
    """

    source: int
    tag: int
    dtype: DType
    memory: Any
    work: Work[None]

    @property
    def message(self) -> Message:
        return Message(self.source, self.tag, len(self.memory) // self.dtype.itemsize, self.dtype)


class Labelled(Protocol):
    """A message, or a receive, whose source and tag may be ANY."""

    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...


def matches(message: Labelled, source: int, tag: int) -> bool:
    """Whether a receive with this source and tag, either of which may be ANY, matches this message."""
    return source in (message.source, ANY) and tag in (message.tag, ANY)


def overlap(receive: Labelled, source: int, tag: int) -> bool:
    """Whether one message could match both this receive and another one with this source and tag."""
    same_source = receive.source == source or ANY in (receive.source, source)
    return same_source and (receive.tag == tag or ANY in (receive.tag, tag))


def late(operation: str, limit: float, peer: int, tag: int) -> CollectiveTimeout:
    """The error of a message to or from `peer` with `tag`, either of which may be ANY, that takes too long."""
    whom, missing = ("any rank", ()) if peer == ANY else (f"rank {peer}", (peer,))
    label = "any tag" if tag == ANY else f"tag {tag}"
    way = "to" if operation.startswith("send") else "from"
    what = f"{operation} {way} {whom} with {label} was not complete"
    return too_late(what, limit, operation=operation, missing=missing)


def no_probe(operation: str, backend: str) -> UnsupportedError:
    """What this backend lacks: it receives only messages of which all but the data is known."""
    why, remedy = "it cannot probe for messages", "receive with a source, a tag and a length"
    return UnsupportedError(operation, backend, why, remedy)


class Arrival(Work[None]):
    """A receive of a message of any length. Once it is complete, it describes the message."""

    @property
    @abstractmethod
    def source(self) -> int: ...

    @property
    @abstractmethod
    def tag(self) -> int: ...

    @property
    @abstractmethod
    def dtype(self) -> int:
        """The number of its DType."""

    @property
    @abstractmethod
    def is_object(self) -> bool:
        """Whether it is an object."""

    @abstractmethod
    def memory(self) -> Any:
        """The message's bytes, by the buffer protocol; writable, unless it is a short object. Called once."""

    @abstractmethod
    def return_message(self) -> None:
        """Keep the message for the next receive that matches it; instead of `memory`, once it is complete."""


class Receives(ABC):
    """The receives of one communicator for messages of any length.

    They match messages by (source, tag), either of which may be ANY, in the order sent and posted, as all receives do.
    A message of another kind fails the receive with MismatchError, and stays for the next one; so does the message of
    a receive that is cancelled.
    """

    @abstractmethod
    def recv_object(self, src: int, tag: int) -> Arrival:
        """Start to receive an object."""

    @abstractmethod
    def recv_message(self, src: int, tag: int) -> Arrival:
        """Start to receive whatever comes."""

    @abstractmethod
    def recv_arrived(self, src: int, tag: int) -> tuple[Arrival, tuple[int, int, int]] | None:
        """The same for a message that has arrived, which no other receive gets any more; None if there is none.

        Returns also the message's source, tag and bytes.
        """

    @abstractmethod
    def probe(self, src: int, tag: int, timeout: float) -> Message | None:
        """The message that a receive would get, if it comes within `timeout` seconds.

        Raises PeerLostError, as a receive does, when no such message can arrive any more.
        """

    @abstractmethod
    def send_object(self, parts: list[Any], dest: int, tag: int, synchronous: bool = False) -> Work[None]:
        """Start to send an object: the bytes of the parts, by the buffer protocol, one after the other.

        They must not change until the Work is done; the communicator keeps them. synchronous: it is done only when a
        receive has matched the message, if the backend can tell.
        """

    @abstractmethod
    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None:
        """Send an object. After an error the parts may change, as in the array level's `send`."""
