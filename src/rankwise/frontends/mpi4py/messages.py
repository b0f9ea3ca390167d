"""Point-to-point calls: buffers in methods with a capital, objects in lower case."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from rankwise import MismatchError
from rankwise.contract.message import ANY, late
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.frontends.mpi4py.context import Context
from rankwise.frontends.mpi4py.handles import Handle, Named, new
from rankwise.frontends.mpi4py.pickling import CODEC, unwrap, wrap
from rankwise.frontends.mpi4py.requests import (
    SENT,
    Arriving,
    Pending,
    Persistent,
    Prequest,
    Request,
    Started,
    Together,
    completed,
    object_of,
)
from rankwise.frontends.mpi4py.specs import address, kept, ndarray, plain, simple
from rankwise.frontends.mpi4py.status import ANY_SOURCE, ANY_TAG, NOBODY, Status
from rankwise.group.base import nothing
from rankwise.group.object_block import assemble
from rankwise.group.work import ArrayWork

_ANY = {ANY_SOURCE: ANY}  # of a rank or tag

OBJECT = object()
"""In place of the buffer of a receive: the message is an object."""


class Messages(Named[Context]):
    """The messages of a communicator.

    A buffered send copies its buffer. A ready send is an ordinary send. So is a synchronous send if the job runs on
    several hosts: those backends cannot tell when a receive has matched the message.
    """

    # ---- buffers ----

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        x, context = plain(buf), self._h or self._live()
        if x is None or not context.shortcuts.send_array(x, dest, tag):
            _finish(self._begin_send(buf, dest, tag))

    def _begin_send(self, buf: Any, dest: int, tag: int, copy: bool = False, synchronous: bool = False) -> Started:
        """A send in general: of any buffer, to any rank, on any backend."""
        context = self._live()
        to = context.destination(dest, tag)
        if to is None:
            return Pending()
        blocks, group = simple(buf, False), context.group
        data, dtype = blocks.packed(), blocks.dtype
        if copy:
            data = data.copy()
        start = context.shortcuts.issend_array if synchronous else context.shortcuts.isend_array
        work = start(blocks.elements(data), to, int(tag), group)
        if work is None and synchronous:  # the elements are not aligned
            work = start(np.asarray(data), to, int(tag), group)
        if work is None:
            inner = context.comm.send(address(data), data.size // dtype.itemsize, dtype, to, int(tag), data)
            return Pending(ArrayWork(inner, nothing, group.pending, (group, data)).register())
        return _sending(work)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        context = self._h or self._live()
        x = buf if type(buf) is ndarray else plain(buf)
        work = context.shortcuts.isend_array(x, dest, tag, context.group)
        request = new(Request)  # faster than Request._of
        request._h = self._begin_send(buf, dest, tag) if work is None else _sending(work)
        return request

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        self._live().destination(dest, tag)
        buf = kept(buf)
        return Prequest._of(Persistent(lambda: self.Isend(buf, dest, tag)._live()))

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._begin_send(buf, dest, tag, copy=True))

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._begin_send(buf, dest, tag, copy=True)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        return Prequest._of(Persistent(partial(self._begin_send, kept(buf), dest, tag, True)))

    Rsend, Irsend, Rsend_init = Send, Isend, Send_init

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._begin_send(buf, dest, tag, synchronous=True))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        _finish(self._begin_send(buf, dest, tag, synchronous=True))

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        self._live().destination(dest, tag)
        return Prequest._of(Persistent(partial(self._begin_send, kept(buf), dest, tag, synchronous=True)))

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        x, context = buf if type(buf) is ndarray else plain(buf), self._h or self._live()
        try:
            message = context.shortcuts.recv_array_up_to(x, source, tag)
        except MismatchError:  # the message is too long, or an object, and is still there
            message = None
        if message is None:
            _finish(self.Irecv(buf, source, tag)._live(), status)
        elif status is not None:
            status._set(message)

    def _begin_receive(self, source: int, tag: int, buf: Any = OBJECT) -> Started:
        """A receive in general: into any buffer, or of an object, from any rank, on any backend."""
        context = self._live()
        src, label = context.source(source, tag)
        if src is None:
            return Pending(None, NOBODY)
        blocks = None if buf is OBJECT else simple(buf, True)
        if blocks is not None:
            room = blocks.room()
            work = context.shortcuts.irecv_array_up_to(blocks.elements(room), src, label, context.group)
            if work is not None:  # this backend knows such receives
                return Arriving(work, blocks, room)
        return Arriving(context.group.receives.recv_message(src, label), blocks)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        context = self._h or self._live()
        x = buf if type(buf) is ndarray else plain(buf)
        work = context.shortcuts.irecv_array_up_to(x, source, tag, context.group)
        request = new(Request)
        request._h = self._begin_receive(source, tag, buf) if work is None else work
        return request

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        self._live().source(source, tag)
        buf = kept(buf)
        return Prequest._of(Persistent(lambda: self.Irecv(buf, source, tag)._live()))

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        receiving = self.Irecv(recvbuf, source, recvtag)._live()
        try:
            return Request._of(Together(self.Isend(sendbuf, dest, sendtag)._live(), receiving))
        except BaseException:
            receiving.cancel()
            raise

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        if not self._exchanged(sendbuf, dest, sendtag, recvbuf, source, recvtag, status):
            _finish(self.Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag)._live(), status)

    def _exchanged(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int,
        recvbuf: Any,
        source: int,
        recvtag: int,
        status: Status | None,
    ) -> bool:
        """Sendrecv of plain arrays, which may be one. False, with nothing done, for anything else."""
        x, into, context = plain(sendbuf), plain(recvbuf), self._h or self._live()
        try:
            message = context.shortcuts.sendrecv_array(x, dest, sendtag, into, source, recvtag)
        except MismatchError:  # it is sent; what comes is too long, or an object
            _finish(self.Irecv(recvbuf, source, recvtag)._live(), status)
            return True
        if message is not None and status is not None:
            status._set(message)
        return message is not None

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        sending = self._begin_send(buf, dest, sendtag, copy=True)
        return Request._of(Together(sending, self.Irecv(buf, source, recvtag)._live()))

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        if not self._exchanged(buf, dest, sendtag, buf, source, recvtag, status):
            _finish(self.Isendrecv_replace(buf, dest, sendtag, source, recvtag)._live(), status)

    # ---- objects ----

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        context = self._live()
        sent = wrap(obj)
        if not context.shortcuts.send_object_plain(sent, dest, tag, CODEC.encode):
            to = context.destination(dest, tag)
            if to is not None:
                context.group.receives.send_object_now(CODEC.encode(sent), to, int(tag))

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        context = self._live()
        sent = wrap(obj)
        if context.shortcuts.isend_object_plain(sent, dest, tag):
            return Request._of(SENT)
        return Request._of(self._begin_object_send(sent, dest, tag))

    bsend, ibsend = send, isend

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._begin_object_send(wrap(obj), dest, tag, synchronous=True))

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        _finish(self._begin_object_send(wrap(obj), dest, tag, synchronous=True))

    def _begin_object_send(self, sent: Any, dest: int, tag: int, synchronous: bool = False) -> Started:
        context = self._live()
        to, group = context.destination(dest, tag), context.group
        if to is None:
            return Pending()
        parts = CODEC.encode(sent)
        if len(parts) > 1:  # they share memory with the object, which may change
            parts = [assemble(parts)]
        work = group.receives.send_object(parts, to, int(tag), synchronous)
        if work.done():
            work.wait()
            return SENT
        return Pending(ArrayWork(work, nothing, group.pending, group).register())

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receive an object. buf: not needed, and not used."""
        if buf is not None:
            _warn_of(buf)
        context = self._live()
        src, label = _ANY.get(source, source), _ANY.get(tag, tag)
        try:
            if status is None:
                obj = context.shortcuts.recv_object_plain(src, label, None, CODEC.read, None)
                if obj is not NOT_TAKEN:
                    return unwrap(obj)
            else:
                described = context.shortcuts.recv_object_with_source(src, label, CODEC.read, None)
                if described is not NOT_TAKEN:
                    obj, message = described
                    status._set(message)
                    return unwrap(obj)
        except MismatchError:  # the message is a buffer, and still there
            buf = None
        return _finish(self._begin_receive(source, tag), status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return Request._of(self._begin_receive(source, tag))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        sending = self.isend(sendobj, dest, sendtag)
        received = self.recv(recvbuf, source, recvtag, status)
        sending.wait()
        return received

    # ---- looking for messages ----

    def _look(self, source: int, tag: int, status: Status | None, waits: bool) -> tuple[int, int, int] | None:
        """Source, tag and bytes of a message, which the status gets too; None if there is none yet."""
        context = self._live()
        src, label = context.source(source, tag)
        message = NOBODY
        if src is not None:
            limit = context.group.timeout if waits else 0.0
            envelope = context.group.receives.probe(src, label, limit)
            if envelope is None:
                if not waits:
                    return None
                raise late("Probe", limit, src, label)
            message = (envelope.source, envelope.tag, envelope.count * envelope.dtype.itemsize)
        if status is not None:
            status._set(message)
        return message

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        context = self._h or self._live()
        message = context.shortcuts.probe_now(source, tag)
        if message is None:
            return self._look(source, tag, status, False) is not None
        if message and status is not None:
            status._set(message)
        return message is not False

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._look(source, tag, status, True) is not None

    iprobe, probe = Iprobe, Probe

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        return self._match(source, tag, status, False)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        return self._match(source, tag, status, True)

    def _match(self, source: int, tag: int, status: Status | None, waits: bool) -> Message | None:
        """The handle of a message, which no other call gets any more; None if there is none yet."""
        context = self._live()
        src, label = context.source(source, tag)
        if src is None:
            self._look(source, tag, status, waits)
            return Message(MESSAGE_NO_PROC)
        while (arrived := context.group.receives.recv_arrived(src, label)) is None:
            if not waits:
                return None
            self._look(source, tag, None, waits)
        work, message = arrived
        if status is not None:
            status._set(message)
        return Message._of(Arriving(work))

    improbe, mprobe = Improbe, Mprobe


class Message(Handle[Started], root=True):
    """A message that Mprobe has matched: only `Recv` or `recv` of this handle receives it."""

    _null = "ERR_REQUEST"

    def _take(self) -> Started:
        h = self._live()
        if self is not MESSAGE_NO_PROC:
            self._h = None
        return h

    def free(self) -> None:
        """Do nothing: the message can still be received."""

    def Irecv(self, buf: Any) -> Request:
        h = self._live()
        if isinstance(h, Arriving):
            h.blocks = simple(buf, True)  # if it cannot be used, the message can still be received
        return self.irecv()

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        self.Irecv(buf).Wait(status)

    def irecv(self) -> Request:
        return Request._of(self._take())

    def recv(self, status: Status | None = None) -> Any:
        return self.irecv().wait(status)

    @classmethod
    def Probe(cls, comm: Messages, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Any = None) -> Message:
        return cls(comm.Mprobe(source, tag, status))

    @classmethod
    def Iprobe(cls, comm: Messages, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Any = None) -> Message | None:
        arrived = comm.Improbe(source, tag, status)
        return None if arrived is None else cls(arrived)

    probe, iprobe = Probe, Iprobe


def _sending(work: Any) -> Started:
    """What isend_array has started. It goes on even if the program drops the request."""
    if work is True:
        return SENT
    work.goes_on_when_dropped = True
    return work  # type: ignore[no-any-return]


def _finish(operation: Started, status: Status | None = None) -> Any:
    """Wait for a message, and fill the status; returns its object, if it is one. An interrupted one is cancelled."""
    try:
        operation = completed(operation)
    except BaseException:
        operation.cancel()
        raise
    if status is not None:
        status._set(operation.message)
    return object_of(operation)


def _warn_of(buf: Any) -> None:
    """recv's first argument is a buffer, which programs often forget."""
    if isinstance(buf, int):
        text = f'the "buf" argument should be None, not {buf!r}; did you mean source={buf}?'
    else:
        text = 'the "buf" argument is not needed, and not used'
    warnings.warn(text, UserWarning, stacklevel=3)


MESSAGE_NULL = Message()._named("MESSAGE_NULL")
MESSAGE_NO_PROC: Message = Message._of(Pending(None, NOBODY))._named("MESSAGE_NO_PROC")
