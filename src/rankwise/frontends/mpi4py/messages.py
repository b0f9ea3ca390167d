"""Point-to-point calls: buffers in methods with a capital, objects in lower case."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from rankwise import CollectiveTimeout, MismatchError
from rankwise.contract.message import ANY
from rankwise.contract.message import Message as Found
from rankwise.frontends.mpi4py.context import Context
from rankwise.frontends.mpi4py.handles import Handle
from rankwise.frontends.mpi4py.pending import Arriving, Pending, Persistent, Receiving, Together, ToItself
from rankwise.frontends.mpi4py.pickling import PICKLE, wrap
from rankwise.frontends.mpi4py.requests import Prequest, Request
from rankwise.frontends.mpi4py.specs import address, plain, simple, truncated
from rankwise.frontends.mpi4py.status import ANY_SOURCE, ANY_TAG, NOBODY, PROC_NULL, Status
from rankwise.group.base import nothing
from rankwise.group.work import ArrayWork

SHORT = 1 << 16
"""Bytes up to which a message from any rank is received in memory of its own, in one call, and copied."""

_ANY = {ANY_SOURCE: ANY}  # of a rank or tag


class Messages(Handle):
    """The messages of a communicator.

    A buffered send copies its buffer. A ready send is an ordinary send. So is a synchronous send to another rank, which
    may therefore be complete before a receive matches it; a synchronous send to this rank itself is complete only when
    the message has been received.
    """

    _h: Context | None

    def _live(self) -> Context:
        return super()._live()  # type: ignore[no-any-return]

    def _refer(self, h: Context | None) -> None:
        self._h = h
        if h is not None:  # the ways of the fastest calls
            ways = h.shortcuts
            self._send_array, self._recv_array = ways.send_array, ways.recv_array
            self._isend_array, self._irecv_array = ways.isend_array, ways.irecv_array

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_array") and self._h is None:
            self._live()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- buffers ----

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        x = plain(buf)
        if x is not None and self._send_array(x, dest, tag):
            return
        to = self._live().destination(dest, tag)
        if to is not None:
            blocks = simple(buf, False)
            if not self._send_array(blocks.elements(blocks.packed()), to, int(tag)):
                self._begin_send(buf, dest, tag).wait()

    def _begin_send(self, buf: Any, dest: int, tag: int, copy: bool = False) -> Pending:
        context = self._live()
        to = context.destination(dest, tag)
        if to is None:
            return Pending()
        blocks = simple(buf, False)
        data, dtype = blocks.packed(), blocks.dtype
        if copy:
            data = data.copy()
        group = context.group
        work = context.comm.send(address(data), data.size // dtype.itemsize, dtype, to, int(tag), data)
        return Pending(ArrayWork(work, nothing, group.pending, (group, data)).started())

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        x = plain(buf)
        if x is not None:
            work: Any = self._isend_array(x, dest, tag, self._live().group)
            if work is not None:
                if work is True:
                    return Request._of(Pending())
                work.started = True  # it goes on even if the program drops the request
                return Request._of(Pending(work))
        return Request._of(self._begin_send(buf, dest, tag))

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        self._live().destination(dest, tag)
        return Prequest._of(Persistent(partial(self._begin_send, buf, dest, tag)))

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return Request._of(self._begin_send(buf, dest, tag, copy=True))

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._begin_send(buf, dest, tag, copy=True)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        return Prequest._of(Persistent(partial(self._begin_send, buf, dest, tag, True)))

    Rsend, Irsend, Rsend_init = Send, Isend, Send_init

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._synchronous(self.Isend(buf, dest, tag), dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        if dest == self._live().rank:
            self.Issend(buf, dest, tag).Wait()
        else:
            self.Send(buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        self._live().destination(dest, tag)
        return Prequest._of(Persistent(lambda: self.Issend(buf, dest, tag)._live()))

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        context = self._live()
        if context.receives.exact and not context.receives.posted and source != PROC_NULL:
            message = self._received_now(context, buf, source, tag)
            if message is not None:
                if status is not None:
                    status._set(message)
                return
        _finish(self._begin_receive(buf, source, tag), status)

    def _received_now(self, context: Context, buf: Any, source: int, tag: int) -> tuple[int, int, int] | None:
        """Receive in one call of the engine, and return source, tag and bytes; None if the general way must do it."""
        x = plain(buf)
        if x is None:
            blocks = simple(buf, True)
            whole = blocks.whole()
            if whole is None:
                return None
            x = blocks.elements(whole)
        try:
            if source == ANY_SOURCE or tag == ANY_TAG:
                if x.nbytes <= SHORT and x.flags.writeable:
                    return self._copied(context, x, _ANY.get(source, source), _ANY.get(tag, tag))
                found = self._look(source, tag, True)
                assert found is not None
                source, tag = found.source, found.tag
            return (source, tag, x.nbytes) if self._recv_array(x, source, tag) else None
        except MismatchError:  # the message has another length or dtype, or is an object, and is still there
            return None

    def _copied(self, context: Context, x: Any, src: Any, label: Any) -> tuple[int, int, int] | None:
        """Receive a message of any length, and copy it."""
        found = context.receives.receive_any(src, label, None)
        if found is NotImplemented:
            return None
        block, source, tag, _ = found
        message = source, tag, len(block)
        if len(block) > x.nbytes:
            raise truncated(message, x.nbytes)
        if len(block):
            x.view(np.uint8)[: len(block)] = np.frombuffer(block, np.uint8)
        return message

    def _begin_receive(self, buf: Any, source: int, tag: int) -> Pending:
        context = self._live()
        src, label = context.source(source, tag)
        if src is None:
            return Pending(None, NOBODY)
        return Receiving(context.receives, simple(buf, True), src, label)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return Request._of(self._begin_receive(buf, source, tag))

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        self._live().source(source, tag)
        return Prequest._of(Persistent(partial(self._begin_receive, buf, source, tag)))

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        receiving = self._begin_receive(recvbuf, source, recvtag)
        return Request._of(Together(self._begin_send(sendbuf, dest, sendtag), receiving))

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
        self.Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag).Wait(status)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        sending = self._begin_send(buf, dest, sendtag, copy=True)
        return Request._of(Together(sending, self._begin_receive(buf, source, recvtag)))

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        self.Isendrecv_replace(buf, dest, sendtag, source, recvtag).Wait(status)

    # ---- objects ----

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        context = self._live()
        to = context.destination(dest, tag)
        context.group.send_object(wrap(obj) if PICKLE.replaced else obj, to, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        context = self._live()
        to = context.destination(dest, tag)
        return Request._of(Pending(context.group.isend_object(wrap(obj), to, tag)))

    bsend, ibsend = send, isend

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._synchronous(self.isend(obj, dest, tag), dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        if dest == self._live().rank:
            self.issend(obj, dest, tag).wait()
        else:
            self.send(obj, dest, tag)

    def _synchronous(self, request: Request, dest: int, tag: int) -> Request:
        c = self._live()
        return Request._of(ToItself(c.receives, c.rank, tag)) if dest == c.rank else request

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receive an object. buf: not needed, and not used."""
        if buf is not None:
            _warn_of(buf)
        context = self._live()
        if not PICKLE.replaced and source != PROC_NULL:
            if status is not None:
                found = self._look(source, tag, True)
                assert found is not None
                source, tag = found.source, found.tag
                status._set(_described(found))
            elif context.receives.late:
                context.receives.post_late()
            src, label = context.source(source, tag)
            try:
                return context.group.recv_object(src, label)
            except MismatchError:  # the message is a buffer, and still there
                buf = None
        return _finish(self._begin_object(source, tag), status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return Request._of(self._begin_object(source, tag))

    def _begin_object(self, source: int, tag: int) -> Pending:
        context = self._live()
        src, label = context.source(source, tag)
        if src is None:
            return Pending(None, NOBODY)
        context.receives.post_late()
        return Arriving(context.receives, src, label)

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
        found = self.recv(recvbuf, source, recvtag, status)
        sending.wait()
        return found

    # ---- looking for messages ----

    def _look(self, source: int, tag: int, waits: bool) -> Found | None:
        """The message, or None if there is none yet."""
        context = self._live()
        src, label = context.source(source, tag)
        assert src is not None
        if context.receives.late:
            context.receives.post_late()
        limit = context.group.timeout if waits else 0.0
        found: Found | None = context.receives.engine.probe(src, label, limit)
        if waits and found is None:
            raise CollectiveTimeout(f"Probe: no message from {source} with tag {tag} within {limit:g} s", limit=limit)
        return found

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._probed(source, tag, status, False)

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        return self._probed(source, tag, status, True)

    def _probed(self, source: int, tag: int, status: Status | None, waits: bool) -> bool:
        message = NOBODY
        if source != PROC_NULL:
            found = self._look(source, tag, waits)
            if found is None:
                return False
            message = _described(found)
        if status is not None:
            status._set(message)
        return True

    iprobe, probe = Iprobe, Probe

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        return self._matched(source, tag, status, False)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        return self._matched(source, tag, status, True)

    def _matched(self, source: int, tag: int, status: Status | None, waits: bool) -> Message | None:
        if source == PROC_NULL:
            if status is not None:
                status._set(NOBODY)
            return MESSAGE_NO_PROC
        found = self._look(source, tag, waits)
        if found is None:
            return None
        if status is not None:
            status._set(_described(found))
        receives = self._live().receives
        arriving = Arriving(receives, found.source, found.tag)
        arriving.done()  # from now on it has the message
        return Message._of(arriving)

    improbe, mprobe = Improbe, Mprobe


class Message(Handle, root=True):
    """A message that Mprobe has matched: only `Recv` or `recv` of this handle receives it."""

    _null = "ERR_REQUEST"
    _h: Pending | None

    def _take(self) -> Pending:
        h: Pending = self._live()
        if self is not MESSAGE_NO_PROC:
            self._h = None
        return h

    def Irecv(self, buf: Any) -> Request:
        h = self._take()
        if isinstance(h, Arriving):
            h.blocks = simple(buf, True)
        return Request._of(h)

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
        found = comm.Improbe(source, tag, status)
        return None if found is None else cls(found)

    probe, iprobe = Probe, Iprobe


def _finish(receiving: Pending, status: Status | None) -> Any:
    """Wait for a receive, and fill the status; returns its object. An interrupted one is cancelled."""
    try:
        receiving.wait()
    except BaseException:
        receiving.cancel()
        raise
    if status is not None:
        status._set(receiving.message)
    return receiving.result


def _described(found: Found) -> tuple[int, int, int]:
    """Source, tag and bytes of a message that a probe has found."""
    return found.source, found.tag, found.count * found.dtype.itemsize


def _warn_of(buf: Any) -> None:
    """recv's first argument is a buffer, which programs often forget."""
    if isinstance(buf, int):
        text = f'the "buf" argument should be None, not {buf!r}; did you mean source={buf}?'
    else:
        text = 'the "buf" argument is not needed, and not used'
    warnings.warn(text, UserWarning, stacklevel=3)


MESSAGE_NULL = Message()._named("MESSAGE_NULL")
MESSAGE_NO_PROC: Message = Message._of(Pending(None, NOBODY))._named("MESSAGE_NO_PROC")
