"""Matches messages and receives by source and tag, in the order in which they arrived."""

from __future__ import annotations

from typing import Generic, TypeVar

from rankwise.contract.errors import MismatchError
from rankwise.contract.message import Labelled, matches
from rankwise.contract.types import DTYPE_NAMES, DType

R = TypeVar("R", bound=Labelled)
E = TypeVar("E", bound=Labelled)


class Matching(Generic[R, E]):
    """Receives that wait for an envelope, and envelopes that wait for a receive. The caller serialises the calls.

    R: receives. E: envelopes, each of which announces a message.
    """

    def __init__(self) -> None:
        self.receives: list[R] = []
        self.envelopes: list[E] = []

    def post(self, receive: R) -> E | None:
        """The envelope of the message that this receive matches; None if the receive must wait for one."""
        envelope = self.find(receive.source, receive.tag)
        if envelope is None:
            self.receives.append(receive)
        else:
            self.envelopes.remove(envelope)
        return envelope

    def arrive(self, envelope: E) -> R | None:
        """The receive that this message matches; None if the message must wait for one."""
        for at, receive in enumerate(self.receives):
            if matches(envelope, receive.source, receive.tag):
                return self.receives.pop(at)
        self.envelopes.append(envelope)
        return None

    def find(self, source: int, tag: int) -> E | None:
        """The envelope that a receive with this source and tag would match now."""
        return next((envelope for envelope in self.envelopes if matches(envelope, source, tag)), None)


def mismatch(tag: int, sent: int, sent_dtype: DType, expected: int, dtype: DType) -> MismatchError | None:
    """What is wrong if a message of `sent` elements matches a receive of `expected`; None if nothing is."""
    if (sent, sent_dtype) == (expected, dtype):
        return None
    return MismatchError(
        f"recv: the message is (count={sent}, dtype={DTYPE_NAMES[sent_dtype]}, tag={tag}), "
        f"the receive expects (count={expected}, dtype={DTYPE_NAMES[dtype]})"
    )
