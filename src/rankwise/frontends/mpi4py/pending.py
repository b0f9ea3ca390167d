"""What requests wait for."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise import CollectiveTimeout, Group, MismatchError
from rankwise.contract.message import ANY
from rankwise.frontends.mpi4py.buffers import Bytes
from rankwise.frontends.mpi4py.pickling import PICKLE, unwrap
from rankwise.frontends.mpi4py.specs import Blocks, address, truncated
from rankwise.frontends.mpi4py.status import EMPTY
from rankwise.group.object_block import read


class Pending:
    """An operation in progress. work: rankwise's, or None if it is complete.

    message: once it is complete, the source, tag and bytes of its message. result: of a receive of an object, the
    object. cancelled: whether it was cancelled.
    """

    result: Any = None
    cancelled = False

    def __init__(self, work: Any = None, message: tuple[int, int, int] = EMPTY) -> None:
        self.work, self.message = work, message

    def done(self) -> bool:
        return self.work is None or bool(self.work.done())

    def wait(self) -> None:
        """Return when it is complete, or raise its error."""
        if self.work is not None and not self.cancelled:
            self.work.wait()

    def cancel(self) -> None:
        self.cancelled = self.work is not None and bool(self.work.cancel())


class Receives:
    """The receives of one communicator that have been started with Irecv, in that order, and are not complete."""

    def __init__(self, group: Group) -> None:
        self.comm = group.comm
        self.engine = group.receives
        self.exact = group.comm.receives is not None
        """Whether a receive of a known length leaves a message of another length to the next receive."""
        self.posted: list[Receiving] = []
        self.receive_now, self.receive_any = self.comm.shortcuts.recv_array, group.arrivals.recv_any_plain
        self.late: list[Receiving] = []
        """Those of `posted` that the engine does not know yet."""

    def post_late(self) -> None:
        """Post them to the engine. Called before a probe, and before a wait that may depend on one of them."""
        late, self.late = self.late, []
        for receiving in late:
            receiving.begin()


LATE_BYTES = 1 << 20
"""Bytes that receives not yet posted to the engine may expect in all; far less than a rank keeps unexpected."""


class Arriving(Pending):
    """A receive of a message of any length: an object, or into a buffer.

    The engine distinguishes objects from buffers; MPI does not. If a message of the other kind comes, the engine leaves
    it to the next receive, so this receive changes its kind. blocks: the buffer, or None for an object.
    """

    def __init__(self, receives: Receives, source: int, tag: int, blocks: Blocks | None = None) -> None:
        super().__init__()
        self.receives, self.source, self.tag, self.blocks = receives, source, tag, blocks
        self.takes_object = blocks is None
        self.complete = False
        self.memory: Any = None
        self.post()

    def post(self) -> None:
        engine = self.receives.engine
        if self.takes_object:
            self.work = engine.recv_object(self.source, self.tag)
        else:
            self.work = engine.recv_any(None, self.source, self.tag)

    def done(self) -> bool:
        while not self.complete and self.work.done():
            self.finish()
        return self.complete

    def wait(self) -> None:
        while not self.complete:
            self.finish()
        self.deliver()

    def fits(self) -> bool:
        """Wait for the engine's receive. Returns whether the message is one that it takes."""
        try:
            self.work.wait()
        except MismatchError:  # if it is the group's failure, the next receive raises it
            return False
        return True

    def finish(self) -> None:
        """Wait for the message; or receive it anew, as what it is."""
        if not self.fits():
            self.takes_object = not self.takes_object
            self.post()
            return
        self.memory = self.work.memory()
        self.message = (self.work.source, self.work.tag, len(self.memory))
        self.end()

    def deliver(self) -> None:
        """Put the message where it belongs, once."""
        memory, self.memory = self.memory, None
        if memory is None:
            return
        if self.blocks is None:
            self.result = self.object_in(memory)
            return
        data = np.frombuffer(memory, np.uint8) if len(memory) else _NO_BYTES
        if self.takes_object and data.tobytes() == _NONE:
            data = _NO_BYTES  # mpi4py sends None as nothing
        if data.size > self.blocks.nbytes:
            raise truncated(self.message, self.blocks.nbytes)
        self.blocks.unpack(data)

    def object_in(self, memory: Any) -> Any:
        if self.takes_object:
            return unwrap(read(memory, True, self.work.source))
        return PICKLE.loads(bytes(memory)) if len(memory) else None

    def end(self) -> None:
        self.complete = True

    def cancel(self) -> None:
        self.receives.post_late()
        if not self.complete and self.work.cancel():
            self.cancelled = True
            self.end()


_NO_BYTES = np.zeros(0, np.uint8)
_NONE = pickle.dumps(None, 5)


class Receiving(Arriving):
    """A receive into a buffer, which may be longer than the message.

    The engine's receive into the buffer itself takes a message that fills it exactly. Another one stays, and is then
    received in memory of its own and copied. So that no later receive gets it first, only a receive that shares
    no message with another unfinished one begins as exact.
    """

    blocks: Blocks

    def __init__(self, receives: Receives, blocks: Blocks, source: int, tag: int) -> None:
        rivals = [other for other in receives.posted if other.rivals(source, tag)]
        for other in rivals:
            other.loosen()
        self.whole = blocks.whole() if receives.exact and not rivals else None
        self.is_late = False
        super().__init__(receives, source, tag, blocks)
        receives.posted.append(self)

    def rivals(self, source: int, tag: int) -> bool:
        """Whether one message could go to this receive or to one with these arguments."""
        return (ANY in (source, self.source) or source == self.source) and (ANY in (tag, self.tag) or tag == self.tag)

    def post(self) -> None:
        """Let the engine know of it: at once, unless the message is short.

        A receive in the background makes the engine's own thread run. A short message is kept where it arrives, so its
        receive can as well begin when the program waits for it.
        """
        expected = 0 if self.whole is None else self.whole.size + sum(one.blocks.nbytes for one in self.receives.late)
        if self.whole is None or self.work is not None or expected > LATE_BYTES:
            self.begin()
        else:
            self.is_late = True
            self.receives.late.append(self)

    def begin(self) -> None:
        self.is_late = False
        if self.whole is None:
            super().post()
            return
        dtype = self.blocks.dtype
        count = self.whole.size // dtype.itemsize
        self.work = self.receives.comm.recv(address(self.whole), count, dtype, self.source, self.tag, self.whole)

    def loosen(self) -> None:
        """Take a message of any length, before a later receive can take it."""
        self.receives.post_late()
        if self.whole is not None and self.work.cancel():
            self.whole = None
            self.post()
        else:
            self.done()

    def done(self) -> bool:
        if self.is_late:
            if self.receives.engine.probe(self.source, self.tag, 0.0) is None:
                return False
            self.receives.post_late()
        return super().done()

    def wait(self) -> None:
        if self.is_late and self.whole is not None:
            self.receives.late.remove(self)
            received = False
            try:
                received = self.received_now(self.whole)
            finally:  # after an interrupt too, it goes on
                if not self.complete:
                    self.begin()
            if received:
                return
        super().wait()

    def received_now(self, whole: Bytes) -> bool:
        """Receive the message in one call of the engine, unless it has another length, or does not come in time."""
        source, tag, receives = self.source, self.tag, self.receives
        try:
            if ANY in (source, tag):
                found = receives.receive_any(source, tag, None)
                if found is NotImplemented:
                    return False
                self.memory, source, tag, _ = found
                self.message = (source, tag, len(self.memory))
                self.end()
                self.deliver()
                return True
            if not receives.receive_now(self.blocks.elements(whole), source, tag):
                return False
        except MismatchError:  # the message is still there
            self.whole = None
            return False
        self.message = (source, tag, whole.size)
        self.end()
        return True

    def finish(self) -> None:
        if self.whole is None:
            super().finish()
        elif self.fits():
            self.message = (self.work.source, self.work.tag, self.whole.size)
            self.end()
        else:
            self.whole = None
            self.post()

    def end(self) -> None:
        self.complete = True
        self.receives.posted.remove(self)


class ToItself(Pending):
    """A synchronous send to this rank: it is complete when the message has been received."""

    def __init__(self, receives: Receives, rank: int, tag: int) -> None:
        super().__init__()
        self.receives, self.rank, self.tag = receives, rank, tag
        self.complete = False

    def done(self) -> bool:
        for receiving in list(self.receives.posted):
            receiving.done()
        self.complete = self.complete or self.receives.engine.probe(self.rank, self.tag, 0.0) is None
        return self.complete

    def wait(self) -> None:
        end = time.monotonic() + self.receives.comm.timeout
        while not self.done():  # another thread may receive it
            if time.monotonic() > end:
                raise CollectiveTimeout(f"a synchronous send to this rank, with tag {self.tag}, is not received")
            time.sleep(1e-4)

    def cancel(self) -> None:
        if not self.done():
            Arriving(self.receives, self.rank, self.tag).wait()
            self.cancelled = self.complete = True


class Persistent(Pending):
    """A request that can be started again and again. begin: starts it once more."""

    def __init__(self, begin: Callable[[], Pending]) -> None:
        super().__init__()
        self.begin = begin
        self.active: Pending | None = None

    def start(self) -> None:
        self.active = self.begin()

    def done(self) -> bool:
        return self.active is None or self.active.done()

    def wait(self) -> None:
        active, self.active = self.active, None
        self.message, self.result, self.cancelled = EMPTY, None, False
        if active is not None:
            active.wait()
            self.message, self.result, self.cancelled = active.message, active.result, active.cancelled

    def cancel(self) -> None:
        if self.active is not None:
            self.active.cancel()


class Together(Pending):
    """Several as one; the message is that of the last."""

    def __init__(self, *parts: Pending) -> None:
        super().__init__()
        self.parts = parts

    def done(self) -> bool:
        done = [part.done() for part in self.parts]  # each makes progress
        return all(done)

    def wait(self) -> None:
        for part in self.parts:
            part.wait()
        self.message = self.parts[-1].message
