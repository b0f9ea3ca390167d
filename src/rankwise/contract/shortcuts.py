"""A backend's fast paths for the common cases of the array level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias


class FailedWork(Protocol):
    """A Work that has failed. waited: whether its `wait` has raised the error."""

    @property
    def waited(self) -> bool: ...
    def wait(self) -> object: ...
    def exception(self) -> BaseException | None: ...


Encode: TypeAlias = Callable[[Any], list[Any]]
Constructor: TypeAlias = "tuple[str, str] | None"
ObjectShortcut: TypeAlias = Callable[[Any, Any, Any, Constructor, Callable[[Any, Any, Any, Any], Any]], Any]


class Shortcuts:
    """Each method is one operation in its common case.

    In any other case it does nothing and says so: it returns False, None or NotImplemented. The caller then takes the
    general path, which also reports errors. The methods of this class do nothing; a backend may override them. An array
    is contiguous and in host memory, and the arrays of a call have one dtype.
    """

    barrier_without_sync: Callable[[], None] | None = None
    """The communicator's method of this name, with less overhead; None if there is no faster way."""

    gather_encoded: Callable[[list[Any], int], list[Any] | None] | None = None
    """gather_encoded(parts, dst): a gather of encoded objects in which a rank with a short one waits for no other.

    None if there is no such gather. parts: this rank's object, encoded. It returns the blocks of all ranks on dst, and
    None elsewhere.
    """

    def all_reduce_array(self, x: object, op: object, given: object = None) -> bool:
        """given: an array of x's dtype and length whose elements x gets first; None: x's own are reduced."""
        return False

    def reduce_array(self, x: object, dst: object, op: object, given: object = None) -> bool:
        """Likewise. given: on dst."""
        return False

    def broadcast_array(self, x: object, src: object) -> bool:
        return False

    def all_gather_array(self, x: object, out: object) -> bool:
        return False

    def gather_array(self, x: object, dst: object, out: object) -> bool:
        return False

    def scatter_array(
        self, x: object, src: object, out: object, rest: Callable[[list[int], bytes | None, Any, Any], object]
    ) -> bool:
        """On other ranks, rest(header, part, out, src) completes it if src's header shows that `out` does not fit.

        part: this rank's part if it came with the header, else None.
        """
        return False

    def reduce_scatter_array(self, x: object, op: object, out: object) -> bool:
        return False

    def all_gather_v_array(self, x: object, out: object, counts: object) -> bool:
        """counts: the elements of each rank's block; the blocks follow each other in `out`, which may be longer."""
        return False

    def gather_v_array(self, x: object, dst: object, out: object, counts: object) -> bool:
        """Likewise; out, counts: on dst alone."""
        return False

    def gather_blocks(self, block: int, bytes: int, dst: int, out: int, sizes: Sequence[int]) -> bool:
        """The same for memory at addresses. sizes: on dst, the bytes of each rank's block."""
        return False

    def scatter_v_array(self, x: object, counts: object, src: object, out: object) -> bool:
        """x, counts: on src. out: may be longer than this rank's block."""
        return False

    def scatter_blocks(self, blocks: int, sizes: Sequence[int], src: int, out: int, room: int) -> int | None:
        """The same for memory at addresses. sizes: on src, the bytes of each block. room: the bytes at `out`.

        Returns the bytes of this rank's block.
        """
        return None

    def all_to_all_v_array(self, x: object, send_counts: object, out: object, recv_counts: object) -> bool:
        return False

    def all_gather_parts_array(self, x: object, out: object) -> bool:
        """As all_gather_array, but `out` is flat; shapes are not compared."""
        return False

    def gather_parts_array(self, x: object, dst: object, out: object) -> bool:
        """Likewise."""
        return False

    def scatter_parts_array(self, x: object, src: object, out: object) -> bool:
        """Likewise; the ranks know what they receive."""
        return False

    def send_array(self, x: object, dst: object, tag: object) -> bool:
        """Blocks, like recv_array."""
        return False

    def recv_array(self, x: object, src: object, tag: object) -> bool:
        return False

    def all_to_all_array(self, x: object, out: object) -> bool:
        return False

    def isend_array(self, x: object, dst: object, tag: object, group: object) -> Any:
        """Start the send. Returns its Work, or True if it is complete.

        group: kept by the Work until it is complete. If the Work is dropped before that, the message is cancelled,
        unless `started` of the Work is True: then x is kept and the send goes on.
        """
        return None

    def issend_array(self, x: object, dst: object, tag: object, group: object) -> Any:
        """Likewise a synchronous send, which is complete when a receive has matched the message."""
        return None

    def irecv_array(self, x: object, src: object, tag: object, group: object) -> Any:
        """Likewise, but it always returns the Work. The Work's result is x."""
        return None

    def recv_array_up_to(self, x: object, src: object, tag: object) -> tuple[int, int, int] | None:
        """Receive an array that may be shorter than x, and of another dtype: (its source, tag and bytes).

        None, with nothing done, for any unusual case. src and tag may be ANY, or -1, which is MPI's.
        """
        return None

    def sendrecv_array(
        self, x: object, dst: object, send_tag: object, out: object, src: object, tag: object
    ) -> tuple[int, int, int] | None:
        """Send x, and then recv_array_up_to. None, with nothing done, unless x is short and is sent at once."""
        return None

    def irecv_array_up_to(self, x: object, src: object, tag: object, group: object) -> Any:
        """Likewise without waiting: a Work that is `started`, whose result is None.

        Once it is complete, (source, tag, bytes) is its `message`. If the message does not fit, it stays for another
        receive, and `given` has this one's arguments: group, x, src and tag.
        """
        return None

    def failed_messages(self) -> Sequence[FailedWork]:
        """The messages that have failed, and whose error no `wait` has raised yet. Each is returned once."""
        return ()

    def send_object_plain(self, obj: object, dst: object, tag: object, encode: Encode) -> bool:
        """Send an object of basic types, or any other as encode(obj), its parts; blocks, like recv_object_plain.

        It returns False, with nothing done, if dst or tag is not an int in range. It may also leave all objects but
        those of basic types to its caller, and then does not call encode.
        """
        return False

    def isend_object_plain(self, obj: object, dst: object, tag: object) -> bool:
        """Send an object of basic types if that needs no waiting; returns whether it did."""
        return False

    def recv_object_with_source(
        self, src: object, tag: object, read: Callable[[Any, int], Any], constructor: Constructor
    ) -> Any:
        """As recv_object_plain, but it returns (the object, (its source, its tag, its encoded length))."""
        return NotImplemented

    def recv_object_plain(
        self,
        src: object,
        tag: object,
        timeout: float | None,
        read: Callable[[Any, int], Any],
        constructor: Constructor,
    ) -> Any:
        """Receive an object; NotImplemented, with nothing done, if src or tag is not an int in range, or ANY.

        read: read(block, source) decodes the message if it is more than basic types; constructor: as in load_allowed.
        """
        return NotImplemented

    def recv_any_plain(self, src: object, tag: object, timeout: float | None, check: Callable[[Any], object]) -> Any:
        """Receive an array of any length: (its bytes, writable, its source, tag and dtype); NotImplemented likewise.

        check(dtype): called at least for dtypes that NumPy has only by another package; if it raises, the message is
        kept for the next receive.
        """
        return NotImplemented

    broadcast_object_plain: ObjectShortcut | None = None
    """broadcast_object_plain(obj, src, codec, constructor, rest): broadcast an object. None: not available.

    It returns NotImplemented, with nothing done, if it does not support the case. codec.encode(obj) returns the parts
    of an object that has other than basic types. If an object does not fit into a block, or load_allowed(block,
    constructor) does not load it, rest(src, codec, found, sent) completes the operation in the same call. It returns
    the object, but None on src, where the result is obj. found: the encoded object, or the length of the longest one;
    sent: what this rank sends, in parts. gather_object_plain and scatter_object_plain work likewise, except that
    `found` is a list with an item for each rank in gather_object_plain, and `sent` is a list of such parts in
    scatter_object_plain, and that rest returns the result on every rank.
    """

    gather_object_plain: ObjectShortcut | None = None
    """gather_object_plain(obj, dst, codec, constructor, rest); dst: None for every rank."""

    scatter_object_plain: ObjectShortcut | None = None
    """scatter_object_plain(objs, src, codec, constructor, rest)"""
