"""Messages that describe themselves: arrays of unknown size, and Python objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rankwise.arrays import buffers, dtypes
from rankwise.arrays.numpy import NUMPY
from rankwise.contract.errors import MismatchError, UnsupportedError
from rankwise.contract.message import ANY
from rankwise.contract.public import public
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.timeouts import check_wait
from rankwise.contract.types import DTYPE_NAMES, DType
from rankwise.contract.work import COMPLETE, Work
from rankwise.group.base import GroupBase, check_one_source, check_recv_tag, check_tag, nothing
from rankwise.group.object_block import Codec, assemble
from rankwise.group.receives import array_over
from rankwise.group.related import Related
from rankwise.group.work import ArrayWork, wait_or_cancel


@public
class Received(NamedTuple):
    """What `recv_any` received: the data, a one-dimensional array or an object, and the message's source and tag.

    From the null rank, source and tag are None, and the data is empty.

    Example:
        >>> sending = group.isend(np.arange(3), dst=group.rank, tag=4)
        >>> message = group.recv_any(tag=rw.ANY)
        >>> message.data.tolist(), message.source == group.rank, message.tag
        ([0, 1, 2], True, 4)
    """

    data: Any
    source: int | None
    tag: int | None


class Messages(GroupBase):
    """Messages whose receiver does not know their size or content in advance.

    An object is sent as one message, in the encoding of the object collectives, and matched like any other message.
    The arrays in a received object use the memory in which the message arrived. On gloo, MPI and hierarchical, these
    receives make progress only while a thread waits for one of them or asks whether it is done.
    """

    related: Related
    backend: str

    def recv_any(
        self,
        src: int | None = ANY,
        tag: int = 0,
        *,
        dtype: Any = None,
        allow_pickle: bool | None = None,
        timeout: float | None = None,
    ) -> Received:
        """Receive the next message from `src` with `tag`, whatever it is: an array of any length, or an object.

        Several threads may receive: each message goes to one of them.

        Args:
            dtype: only an array of this dtype is expected; a torch dtype gives a tensor.
            allow_pickle: of an object, as in `broadcast_object`.
            timeout: seconds, by default the group's timeout.

        Returns:
            Received(data, source, tag). Shapes are not sent, so the data has one dimension; a number arrives as one
            element.

        Raises:
            MismatchError: the message is no array of this dtype; the next receive of any kind that matches it gets it.
            ImportError: the message has a dtype that NumPy has only with the package ml_dtypes, which is missing; the
                message is kept likewise, for example for a receive with a torch dtype.
            CollectiveTimeout: no message came in time. The group stays usable, and the next receive gets the message,
                even if its data had begun to arrive.

        Example:
            >>> sending = group.isend(np.full(group.rank + 1, 7.5), dst=0)
            >>> if group.rank == 0:
            ...     received = [group.recv_any() for _ in range(2)]
            ...     assert all(each.data.size == each.source + 1 for each in received)
            >>> sending.wait()
        """
        if timeout is not None:
            timeout = check_wait(timeout)
        codec = self._codec(allow_pickle)
        if dtype is None:
            message = self._shortcuts.recv_any_plain(src, tag, timeout, dtypes.to_numpy, codec.read, codec.constructor)
            if message is not NOT_TAKEN:
                data, source, tag, code = message
                if code is not None:
                    data = array_over(data, dtypes.to_numpy(dtypes.DTYPES[code]))
                return Received(data, source, tag)
        expected, kind = (None, NUMPY) if dtype is None else buffers.dtype_argument(dtype)
        source, tag = self._source(src), check_recv_tag(tag)
        if source is None:
            return Received(kind.empty((0,), DType.F64 if expected is None else expected).finish(), None, None)
        receive = self.receives.recv_message(source, tag)

        def finish() -> Received:
            if expected is not None and (receive.is_object or receive.dtype != expected):
                receive.return_message()
                what = "an object" if receive.is_object else f"an array of {DTYPE_NAMES[DType(receive.dtype)]}"
                raise MismatchError(
                    f"recv_any: the message from rank {receive.source} with tag {receive.tag} is {what}, "
                    f"expected an array of {DTYPE_NAMES[expected]}"
                )
            if receive.is_object:
                return Received(codec.read(receive.memory(), receive.source), receive.source, receive.tag)
            dtype = DType(receive.dtype)
            if kind is NUMPY:
                try:
                    dtypes.to_numpy(dtype)
                except ImportError:
                    receive.return_message()
                    raise
            memory = np.frombuffer(receive.memory(), np.uint8)
            shape = (memory.size // dtype.itemsize,)
            return Received(kind.over(memory, shape, dtype), receive.source, receive.tag)

        return wait_or_cancel(ArrayWork(receive, finish, self.pending, self), timeout)

    def send_object(
        self,
        obj: Any,
        dst: int | None,
        tag: int = 0,
        *,
        allow_pickle: bool | None = None,
        by_reference: bool = False,
    ) -> None:
        """Send a Python object to rank `dst`, which receives it with `recv_object`.

        After an error the object may still be delivered, as in `send`.

        Args:
            obj: plain data, or with allow_pickle another object, as in `broadcast_object`.
            allow_pickle: as in `broadcast_object`.
            by_reference: the receiver gets obj itself, of any type, instead of a copy. The ranks must be threads of one
                process. Once sent, obj is kept until it has been received, or until none of the ranks' groups exists
                any more; it is the receiver's, unless both ranks agree on when each of them uses it.

        Raises:
            UnsupportedError: by_reference, where the ranks are not threads of one process.

        Example:
            >>> if group.rank == 0:
            ...     group.send_object({"rows": [1, 2], "of": np.eye(2)}, dst=1)
            ... else:
            ...     assert group.recv_object(src=0)["rows"] == [1, 2]
        """
        codec = self._codec(allow_pickle)
        if not by_reference and self._shortcuts.send_object_plain(obj, dst, tag, codec.encode):
            return
        to, tag = self._destination(dst), check_tag(tag)
        parts, sent = self._parts(obj, codec, by_reference)
        if to is not None:
            self.receives.send_object_now(parts, to, tag)
            sent()

    def isend_object(
        self,
        obj: Any,
        dst: int | None,
        tag: int = 0,
        *,
        allow_pickle: bool | None = None,
        by_reference: bool = False,
    ) -> Work[None]:
        """Start to send an object.

        Its present content is sent, so it may be changed once the call returns; with by_reference the object itself is
        sent, as in `send_object`, and must not be changed.

        Example:
            >>> sending = group.isend_object(("rank", group.rank), dst=1 - group.rank)
            >>> group.recv_object(src=1 - group.rank) == ("rank", 1 - group.rank)
            True
            >>> sending.wait()
        """
        to, tag = self._destination(dst), check_tag(tag)
        parts, sent = self._parts(obj, self._codec(allow_pickle), by_reference)
        if len(parts) > 1:  # they share memory with the object, which may change
            parts = [assemble(parts)]
        if to is None:
            return COMPLETE
        return ArrayWork(self.receives.send_object(parts, to, tag), sent, self.pending, self).register()

    def _parts(self, obj: Any, codec: Codec, by_reference: bool) -> tuple[list[Any], Callable[[], None]]:
        """What is sent of an object, and what to call once it has been sent."""
        if not by_reference:
            return codec.encode(obj), nothing
        references = self.related.references
        if references is None:
            why, remedy = "its ranks are not threads of one process", "send the object without by_reference"
            raise UnsupportedError("sending by reference", self.backend or "program's own", why, remedy)
        sending = references.add(obj)
        return codec.encode(sending.reference), sending.sent

    def recv_object(
        self,
        src: int | None,
        tag: int = 0,
        *,
        allow_pickle: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Receive the next object that rank `src` sent with `tag`, which may be rw.ANY.

        Args:
            allow_pickle: as in `broadcast_object`.
            timeout: as in `recv_any`.

        Returns:
            The object; None from the null rank.

        Raises:
            MismatchError: the message is an array, which the next `recv` or `recv_any` receives.
            TypeError: the message is a pickle that is not allowed.

        Example:
            >>> sending = group.isend_object({"loss": 0.5}, dst=group.rank)
            >>> group.recv_object(group.rank)
            {'loss': 0.5}
        """
        if timeout is not None:
            timeout = check_wait(timeout)
        codec = self._codec(allow_pickle)
        message = self._shortcuts.recv_object_plain(check_one_source(src), tag, timeout, codec.read, codec.constructor)
        if message is NOT_TAKEN:
            return wait_or_cancel(self._irecv_object(src, tag, codec), timeout)
        return message

    def irecv_object(self, src: int | None = ANY, tag: int = 0, *, allow_pickle: bool | None = None) -> ArrayWork[Any]:
        """Start to receive an object.

        Receives of objects match in the order in which they were started. Until this one is done, do not receive an
        array with the same src and tag: that receive could match the object.

        Returns:
            A Work whose result is the object; its `source` and `tag` are the message's.

        Example:
            >>> work = group.irecv_object(tag=rw.ANY)
            >>> group.send_object("to myself", dst=group.rank, tag=6)
            >>> work.wait(), work.source == group.rank, work.tag
            ('to myself', True, 6)
        """
        return self._irecv_object(src, tag, self._codec(allow_pickle)).register()

    def _irecv_object(self, src: int | None, tag: int, codec: Codec) -> ArrayWork[Any]:
        source, tag = self._source(src), check_recv_tag(tag)
        if source is None:
            return ArrayWork(COMPLETE, nothing, self.pending, self)
        receive = self.receives.recv_object(source, tag)

        def finish() -> Any:
            return codec.read(receive.memory(), receive.source)

        return ArrayWork(receive, finish, self.pending, self, source, tag)
