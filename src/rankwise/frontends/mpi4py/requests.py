"""Requests: handles of operations in progress."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rankwise import ClosedError
from rankwise._native import Request as EngineMessage
from rankwise._native import Work
from rankwise.contract.work import Pauses
from rankwise.frontends.mpi4py.errors import Exception, error
from rankwise.frontends.mpi4py.handles import Handle
from rankwise.frontends.mpi4py.pickling import CODEC, PICKLE, unwrap
from rankwise.frontends.mpi4py.specs import simple
from rankwise.frontends.mpi4py.status import EMPTY, UNDEFINED, Status

# ---- what requests wait for ----


Started: TypeAlias = "Pending | EngineMessage | Work"
"""An operation in progress: a Pending, the engine's send or receive of a plain array, or its collective.

message: of a complete receive, the source, tag and bytes of its message; else EMPTY. cancelled: whether it was
cancelled.
"""


class Pending:
    """A Started in Python. work: what it waits for, or None if it is complete. result: the object that it receives."""

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

    def awaited(self) -> list[Any]:
        """The works that it waits for."""
        return [] if self.work is None else works_of(self.work)


SENT = Pending()
"""Stands for every send that was complete as soon as it started, as most short ones are."""


def arrived(operation: Started) -> Started:
    """Wait for an operation of the engine, unless it was cancelled.

    Returns it, or what delivers its message if that is not in its array.
    """
    if isinstance(operation, Pending):
        return operation
    try:
        operation.wait()
    except ClosedError:
        if not operation.cancelled:
            raise
    return operation if operation.given is None else Arriving(operation, simple(operation.given, True))


def completed(operation: Started) -> Started:
    """Wait for an operation, unless it was cancelled. Returns it, or the receive that has taken its place."""
    operation = arrived(operation)
    if isinstance(operation, Pending):
        operation.wait()
    return operation


def object_of(operation: Started) -> Any:
    """The object that a complete operation has received, or None."""
    return operation.result if isinstance(operation, Pending) else None


def works_of(operation: Started) -> list[Any]:
    """The works that an operation waits for: the engine's own is one itself."""
    return operation.awaited() if isinstance(operation, Pending) else [operation]


class Arriving(Pending):
    """A receive of whatever comes, by the engine's `work`. blocks: the buffer that it is for, or None for an object.

    room: the memory for the blocks that the engine receives into if the message fits there; else it keeps the message.
    """

    memory: Any = None

    def __init__(self, work: Any, blocks: Any = None, room: Any = None) -> None:
        super().__init__(work)
        self.blocks, self.room = blocks, room

    def wait(self) -> None:
        """Return when the message is where it belongs."""
        if self.cancelled or self.work is None:
            return
        self.work.wait()
        if self.room is not None and self.work.given is None:
            self.message = self.work.message
            self.blocks.unpack(self.room[: self.message[2]])
        else:
            if self.memory is None:
                self.memory = self.work.memory()
            self.message = (self.work.source, self.work.tag, len(self.memory))
            if self.blocks is not None:
                self.fill()
            elif self.work.is_object:
                self.result = unwrap(CODEC.read(self.memory, self.work.source))
            elif len(self.memory):
                self.result = PICKLE.loads(bytes(self.memory))
        self.work = self.memory = None

    def fill(self) -> None:
        """Put what has come into the blocks."""
        source, tag, nbytes = self.message
        data = np.frombuffer(self.memory, np.uint8) if nbytes else _NO_BYTES
        if self.work.is_object and data.tobytes() == _NONE:
            data, self.message = _NO_BYTES, (source, tag, 0)  # mpi4py sends None as nothing
        if data.size > self.blocks.nbytes:
            text = f"the message from rank {source} with tag {tag} has {nbytes} bytes, the buffer only"
            raise error("ERR_TRUNCATE", f"{text} {self.blocks.nbytes}")
        self.blocks.unpack(data)


_NO_BYTES = np.zeros(0, np.uint8)
_NONE = pickle.dumps(None, 5)


class Persistent(Pending):
    """A request that can be started again and again. begin: starts it once more. work: what it has started, or None."""

    def __init__(self, begin: Callable[[], Started]) -> None:
        super().__init__()
        self.begin = begin

    def wait(self) -> None:
        active, self.work = self.work or SENT, None
        active = completed(active)
        self.message, self.result, self.cancelled = active.message, object_of(active), active.cancelled


class Together(Pending):
    """Several as one; the message is that of the last."""

    def __init__(self, *parts: Started) -> None:
        super().__init__()
        self.parts = [*parts]

    def done(self) -> bool:
        done = [part.done() for part in self.parts]  # each makes progress
        return all(done)

    def wait(self) -> None:
        self.parts = [completed(part) for part in self.parts]
        self.message = self.parts[-1].message

    def cancel(self) -> None:
        for part in self.parts:
            part.cancel()

    def awaited(self) -> list[Any]:
        return [work for part in self.parts if not part.done() for work in works_of(part)]


Requests = Sequence["Request"]


class Request(Handle[Started], root=True):
    """An operation in progress. The methods in lower case also return the object of a receive."""

    __slots__ = ()
    _null = "ERR_REQUEST"

    def wait(self, status: Status | None = None) -> Any:
        """Wait for the operation: raise its error, or fill the status and return its object, if it receives one."""
        h: Any = self._h
        if status is None and type(h) is Work:  # a collective, which has neither a message nor an object
            self._h = None
            return h.wait()
        if h is None or h is SENT:
            self._h = None
            if status is not None:
                status._set(EMPTY)
            return None
        if not isinstance(h, Persistent):
            self._h = None
        h = completed(h)
        if status is not None:
            status._set(h.message, h.cancelled)
        return object_of(h)

    def _done(self) -> bool:
        return self._h is None or self._h.done()

    def Wait(self, status: Status | None = None) -> bool:
        self.wait(status)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        return (True, self.wait(status)) if self._done() else (False, None)

    def Test(self, status: Status | None = None) -> bool:
        return self.test(status)[0]

    def Get_status(self, status: Status | None = None) -> bool:
        """Whether the operation is complete. Unlike `Test`, it does not release the request."""
        if not self._done():
            return False
        if status is not None:
            h: Any = self._h
            if isinstance(h, Persistent):
                h.work = completion = h.work and arrived(h.work)
            else:
                self._h = completion = h and arrived(h)
            completion = completed(completion or SENT)
            status._set(completion.message, completion.cancelled)
        return True

    get_status = Get_status

    def Cancel(self) -> None:
        self._live().cancel()

    cancel = Cancel

    # ---- several ----

    @classmethod
    def waitall(cls, requests: Requests, statuses: Any = None) -> list[Any]:
        """Wait for all. Raises ERR_IN_STATUS if some have failed; the statuses then have the error of each."""
        results, failed = [], None
        for request, status in zip(requests, _statuses(statuses, len(requests)), strict=True):
            try:
                results.append(request.wait(status))
            except Exception as raised:
                failed = failed or raised
                if status is not None:
                    status.Set_error(raised.error_class)
        if failed is not None:
            raise error("ERR_IN_STATUS", f"the first of the operations that have failed: {failed}") from failed
        return results

    @classmethod
    def Waitall(cls, requests: Requests, statuses: Any = None) -> bool:
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def testall(cls, requests: Requests, statuses: Any = None) -> tuple[bool, Any]:
        return (True, cls.waitall(requests, statuses)) if _all_done(requests) else (False, None)

    @classmethod
    def Testall(cls, requests: Requests, statuses: Any = None) -> bool:
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testany(cls, requests: Requests, status: Status | None = None) -> tuple[int, bool, Any]:
        """The index of a complete one, whether there is one, and its object. Inactive requests do not count."""
        index, result = _any_done(requests, status)
        return index, result, None if index == UNDEFINED else requests[index].wait(status)

    @classmethod
    def Testany(cls, requests: Requests, status: Status | None = None) -> tuple[int, bool]:
        return cls.testany(requests, status)[:2]

    @classmethod
    def waitany(cls, requests: Requests, status: Status | None = None) -> tuple[int, Any]:
        index, _, message = _until(lambda: cls.testany(requests, status), lambda result: result[1], requests)
        return index, message

    @classmethod
    def Waitany(cls, requests: Requests, status: Status | None = None) -> int:
        return cls.waitany(requests, status)[0]

    @classmethod
    def testsome(cls, requests: Requests, statuses: Any = None) -> tuple[list[int] | None, Any]:
        """The indices of the complete ones, and their objects; None and None if no request is active."""
        done = _some_done(requests)
        if done is None:
            return None, None
        return done, cls.waitall([requests[index] for index in done], statuses)

    @classmethod
    def Testsome(cls, requests: Requests, statuses: Any = None) -> list[int] | None:
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def waitsome(cls, requests: Requests, statuses: Any = None) -> tuple[list[int] | None, Any]:
        return _until(  # type: ignore[no-any-return]
            lambda: cls.testsome(requests, statuses), lambda result: result[0] is None or result[0], requests
        )

    @classmethod
    def Waitsome(cls, requests: Requests, statuses: Any = None) -> list[int] | None:
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def Get_status_any(cls, requests: Requests, status: Status | None = None) -> tuple[int, bool]:
        index, result = _any_done(requests, status)
        if index != UNDEFINED:
            requests[index].Get_status(status)
        return index, result

    @classmethod
    def Get_status_all(cls, requests: Requests, statuses: Any = None) -> bool:
        if not _all_done(requests):
            return False
        for request, status in zip(requests, _statuses(statuses, len(requests)), strict=True):
            request.Get_status(status)
        return True

    @classmethod
    def Get_status_some(cls, requests: Requests, statuses: Any = None) -> list[int] | None:
        done = _some_done(requests)
        if done:
            cls.Get_status_all([requests[index] for index in done], statuses)
        return done

    get_status_any, get_status_all, get_status_some = Get_status_any, Get_status_all, Get_status_some

    @property
    def _active(self) -> bool:
        return self._h is not None and not (isinstance(self._h, Persistent) and self._h.work is None)


class Prequest(Request):
    """A persistent request: `Start` begins the operation once more."""

    __slots__ = ()

    def Start(self) -> None:
        h: Any = self._live()
        if h.work is not None:
            raise error("ERR_REQUEST", "this persistent request is in progress; wait for it before it starts again")
        h.work = h.begin()

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        for request in requests:
            request.Start()


REQUEST_NULL = Request()._named("REQUEST_NULL")


def _all_done(requests: Requests) -> bool:
    done = [request._done() for request in requests]  # each makes progress
    return all(done)


def _any_done(requests: Requests, status: Status | None) -> tuple[int, bool]:
    """The index of a complete one, and True; True without an index, and an empty status, if none is active."""
    active = [index for index, request in enumerate(requests) if request._active]
    if not active and status is not None:
        status._set(EMPTY)
    index = next((index for index in active if requests[index]._done()), UNDEFINED)
    return index, index != UNDEFINED or not active


def _some_done(requests: Requests) -> list[int] | None:
    """The indices of all complete ones; None if no request is active."""
    active = [index for index, request in enumerate(requests) if request._active]
    return [index for index in active if requests[index]._done()] if active else None


def _statuses(given: Any, count: int) -> list[Status | None]:
    """A status for each of `count` requests. A list that is too short is extended."""
    if given is None:
        return [None] * count
    if isinstance(given, list):
        given += [Status() for _ in range(count - len(given))]
    return [*given, *[None] * count][:count]


def _until(look: Callable[[], Any], is_complete: Callable[[Any], Any], requests: Requests) -> Any:
    """Call `look` until what it returns is wanted."""
    pauses = Pauses()
    while not is_complete(result := look()):
        pauses.wait([work for request in requests if request._h is not None for work in works_of(request._h)])
    return result
