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


Constructor: TypeAlias = "tuple[str, str] | None"
ObjectShortcut: TypeAlias = Callable[[Any, Any, Any, Constructor, Callable[[Any, Any, Any, Any], Any]], Any]


def _not_done(*call: object) -> bool:
    return False


def not_available(*call: object) -> Any:
    """A shortcut that is not there."""
    return None


NOT_TAKEN: Any = object()
"""What a shortcut returns that has done nothing, where None may be the result. No program has this object."""


def _not_taken(*call: object) -> Any:
    return NOT_TAKEN


class Shortcuts:
    """Each method is one operation in its common case.

    In any other case it does nothing and says so. The caller then takes the general path, which also reports errors.
    Those of this class do nothing; a backend may override them if its communicators have `receives`. An array is
    contiguous and in host memory, and the arrays of a call have one dtype. What says that nothing was done is None
    where a method returns a Work or what came, NOT_TAKEN where None may be the result, and else False.

    The end of a name says what the method takes or returns:
    _array: all arrays are given; it returns whether it was done, or a Work. _v_array: likewise, with element counts.
    _parts_array: likewise; one of the arrays is flat and has a part for each rank, and shapes are not compared.
    _result: it returns the result, in a new array if none is given. _number: likewise for a number of Python's.
    _rows: likewise for rows along axis 0, whose number only this rank knows.
    _blocks: memory at addresses, with sizes in bytes.
    _plain: an object; what has other than basic types is encoded and decoded by functions that are given.
    """

    barrier_without_sync: Callable[[], None] | None = None
    """The communicator's method of this name, with less overhead; None if there is no faster way."""

    gather_encoded: Callable[[list[Any], int], list[Any] | None] | None = None
    """gather_encoded(parts, dst): a gather of encoded objects in which a rank with a short one waits for no other.

    None if there is no such gather. parts: this rank's object, encoded. It returns the blocks of all ranks on dst, and
    None elsewhere.
    """

    all_reduce_array: Callable[..., bool] = _not_done
    """all_reduce_array(result, op, source=None): source: an array of the result's dtype and shape, with memory of its
    own; None: the result's elements are reduced.
    """

    reduce_array: Callable[..., bool] = _not_done
    """reduce_array(result, dst, op, source=None): as in all_reduce_array; off dst, `result` is what is reduced."""

    broadcast_array: Callable[..., bool] = _not_done
    """broadcast_array(result, src, source=None): source: as in all_reduce_array, on src."""

    all_reduce_number: Callable[..., Any] = _not_taken
    """all_reduce_number(x, op): as the others of this kind, returns the result of a number of Python's."""

    reduce_number: Callable[..., Any] = _not_taken
    """reduce_number(x, dst, op): None off dst."""

    broadcast_number: Callable[..., Any] = _not_taken
    """broadcast_number(x, src)"""

    all_gather_result: Callable[..., Any] = _not_taken
    """all_gather_result(x, out): as the others of this kind, returns `out`, or a new array if that is None."""

    gather_result: Callable[..., Any] = _not_taken
    """gather_result(x, dst, out): None off dst."""

    reduce_scatter_result: Callable[..., Any] = _not_taken
    """reduce_scatter_result(x, op, out): x's axis 0 divides into equal parts, as in all_to_all_result."""

    all_to_all_result: Callable[..., Any] = _not_taken
    """all_to_all_result(x, out)"""

    scan_result: Callable[..., Any] = _not_taken
    """scan_result(x, op, out)"""

    exscan_result: Callable[..., Any] = _not_taken
    """exscan_result(x, op, out): the result of rank 0 is not written."""

    scan_array: Callable[..., bool] = _not_done
    """scan_array(x, op, out): out has x's shape."""

    exscan_array: Callable[..., bool] = _not_done
    """exscan_array(x, op, out): out has x's shape, and stays as it is on rank 0."""

    all_gather_rows: Callable[..., Any] = _not_taken
    """all_gather_rows(x, out): all_gather_v of the rows of x, whose number only this rank knows. Returns the result:
    `out`, or a new array if that is None.

    In all of this kind, if `out` has another number of rows, the ValueError is raised after the operation.
    """

    gather_rows: Callable[..., Any] = _not_taken
    """gather_rows(x, dst, out): None off dst."""

    scatter_rows: Callable[..., Any] = _not_taken
    """scatter_rows(x, counts, src, out, make, even): make(x, out, shape, dtype) returns the array for a part off src;
    its errors are raised after the operation. even: it is scatter, which has no counts."""

    all_to_all_rows: Callable[..., Any] = _not_taken
    """all_to_all_rows(x, counts, out): (the rows received, how many came from each rank)."""

    reduce_scatter_rows: Callable[..., Any] = _not_taken
    """reduce_scatter_rows(x, counts, op, out)"""

    rows_call: Callable[..., None] | None = None
    """rows_call(operation, ptr, counts, dtype, shape, root, words, room): the first four for memory at addresses.

    operation: its name, "gather_v". counts: how many rows this rank has, or sends to each rank. shape: of a row. words:
    ints of a scatter's src, for the others. room(counts, words) returns the address for what this rank receives: called
    once, with the rows from each rank (in a scatter: the rows received), and src's words; its errors are raised after
    the operation. None: not available.
    """

    all_gather_v_array: Callable[..., bool] = _not_done
    """all_gather_v_array(x, out, counts, displs): counts: the elements of each rank's block; the blocks follow each
    other in `out`, which may be longer. displs: where each block would begin, or None; others are not taken.
    """

    reduce_scatter_v_array: Callable[..., bool] = _not_done
    """reduce_scatter_v_array(x, op, out, counts): counts: the elements of each rank's block of x; `out` may be longer
    than this rank's.
    """

    gather_v_array: Callable[..., bool] = _not_done
    """gather_v_array(x, dst, out, counts, displs): as in all_gather_v_array; out, counts, displs: on dst alone."""

    gather_blocks: Callable[..., bool] = _not_done
    """gather_blocks(block, bytes, dst, out, sizes): the same for memory at addresses. sizes: on dst, the bytes of
    each rank's block.
    """

    scatter_v_array: Callable[..., bool] = _not_done
    """scatter_v_array(x, counts, displs, src, out): counts, displs: as in all_gather_v_array, but of x; on
    src alone, as is x. out: may be longer than this rank's block.
    """

    scatter_blocks: Callable[..., int | None] = not_available
    """scatter_blocks(blocks, sizes, src, out, room): the same for memory at addresses. sizes: on src, the bytes of
    each block. room: the bytes at `out`.

    Returns the bytes of this rank's block.
    """

    all_to_all_v_array: Callable[..., bool] = _not_done
    """all_to_all_v_array(x, send_counts, send_displs, out, recv_counts, recv_displs): as in all_gather_v_array."""

    all_gather_parts_array: Callable[..., bool] = _not_done
    """all_gather_parts_array(x, out): as all_gather_result, but `out` is flat; shapes are not compared."""

    gather_parts_array: Callable[..., bool] = _not_done
    """gather_parts_array(x, dst, out): as in all_gather_parts_array."""

    scatter_parts_array: Callable[..., bool] = _not_done
    """scatter_parts_array(x, src, out): x is flat; the ranks know what they receive."""

    send_array: Callable[..., bool] = _not_done
    """send_array(x, dst, tag): blocks, like recv_array. The arrays of blocking messages may have any strides."""

    recv_array: Callable[..., bool] = _not_done
    """recv_array(x, src, tag)"""

    all_to_all_array: Callable[..., bool] = _not_done
    """all_to_all_array(x, out): shapes are not compared."""

    torch_calls: Callable[..., Any] | None = None
    """torch_calls(operations, work, unset, ops): the operations of a process group of torch.distributed on plain
    tensors, as methods of their names, and `count`, the number of those done.

    They call the method of the same name of operations' class for whatever else they are asked, and for asynchronous
    calls while `coalescing` is True. work: makes torch's Work, whose `inner`, `tensors` and `core` are then set. unset:
    the timeout of options without one. ops: numbers of ReduceOps by the hash of torch's. None: not available.
    """

    isend_array: Callable[..., Any] = not_available
    """isend_array(x, dst, tag, group): start the send. Returns its Work, or True if it is complete.

    group: kept by the Work until it is complete. If the Work is dropped before that, the message is cancelled,
    unless its `goes_on_when_dropped` is True: then x is kept and the send goes on.
    """

    issend_array: Callable[..., Any] = not_available
    """issend_array(x, dst, tag, group): as isend_array, for a synchronous send, which is complete when a receive has
    matched the message.
    """

    irecv_array: Callable[..., Any] = not_available
    """irecv_array(x, src, tag, group): as isend_array, but it always returns the Work, whose result is x."""

    recv_array_up_to: Callable[..., tuple[int, int, int] | None] = not_available
    """recv_array_up_to(x, src, tag): receive an array that may be shorter than x, and of another dtype: (its
    source, tag and bytes).

    None, with nothing done, for any unusual case. src and tag may be ANY, or -1, which is MPI's.
    """

    probe_now: Callable[..., Any] = not_available
    """probe_now(src, tag): (source, tag, bytes) of a message that recv_array_up_to would receive now, or False; None
    as there.
    """

    sendrecv_array: Callable[..., tuple[int, int, int] | None] = not_available
    """sendrecv_array(x, dst, send_tag, out, src, tag): send x, and receive as recv_array_up_to does."""

    sendrecv_result: Callable[..., Any] = _not_taken
    """sendrecv_result(x, dst, src, tag, out): send x, and receive exactly `out`, which may be x, or a new array like x
    if that is None; returns the array.
    """

    exchange_halo_array: Callable[..., bool] = _not_done
    """exchange_halo_array(x, before, after, width, dimension): Mesh.exchange_halo with these neighbours, or None beyond
    an edge.
    """

    irecv_array_up_to: Callable[..., Any] = not_available
    """irecv_array_up_to(x, src, tag, group): as recv_array_up_to, without waiting: a Work that goes on when dropped,
    whose result is None.

    Once it is complete, (source, tag, bytes) is its `message`. It receives whatever comes: if that is longer than x, or
    an object, x is its `given`, which is None otherwise, and `memory()` has the bytes.
    """

    def __getattr__(self, name: str) -> Any:
        """start_<name>(group, ...): start what <name>(...) does; of barrier_without_sync, start_barrier.

        Only the engine has any: shortcuts.cpp, rows.cpp and vector_arrays.cpp of native/bindings define them.

        Returns its Work, or None if nothing was done. The Work's result is the array that receives something, or None.
        It keeps the arrays and the group until it is complete.
        """
        if name.startswith("start_"):
            return not_available
        raise AttributeError(name)

    def failed_works(self) -> Sequence[FailedWork]:
        """The messages and started operations that have failed, and whose error no `wait` has raised yet.

        Each is returned once.
        """
        return ()

    send_object_plain: Callable[..., bool] = _not_done
    """send_object_plain(obj, dst, tag, encode): send an object of basic types, or any other as encode(obj), its
    parts; blocks, like recv_object_plain.

    It returns False, with nothing done, if dst or tag is not an int in range. It may also leave all objects but
    those of basic types to its caller, and then does not call encode.
    """

    isend_object_plain: Callable[..., bool] = _not_done
    """isend_object_plain(obj, dst, tag): send an object of basic types if that needs no waiting; returns whether it
    did.
    """

    recv_object_with_source: Callable[..., Any] = _not_taken
    """recv_object_with_source(src, tag, read, constructor): as recv_object_plain, but it returns (the object, (its
    source, its tag, its encoded length)).
    """

    recv_object_plain: Callable[..., Any] = _not_taken
    """recv_object_plain(src, tag, timeout, read, constructor): receive an object; NOT_TAKEN, with nothing
    done, if src or tag is not an int in range, or ANY.

    read: read(block, source) decodes the message if it is more than basic types; constructor: as in load_allowed.
    """

    recv_any_plain: Callable[..., Any] = _not_taken
    """recv_any_plain(src, tag, timeout, check, read, constructor): receive whatever comes: (an array's bytes, writable,
    its source, tag and dtype), or (an object, its source, tag and None); NOT_TAKEN as in recv_object_plain.

    check(dtype): called at least for dtypes that NumPy has only by another package; if it raises, the message is
    kept for the next receive.
    """

    broadcast_object_plain: ObjectShortcut | None = None
    """broadcast_object_plain(obj, src, codec, constructor, rest): broadcast an object. None: not available.

    It returns NOT_TAKEN, with nothing done, if it does not support the case. codec.encode(obj) returns the parts
    of an object that has other than basic types. If an object does not fit into a block, or load_allowed(block,
    constructor) does not load it, rest(src, codec, first, sent) completes the operation in the same call. It returns
    the object, but None on src, where the result is obj. first(): the encoded object, or its length if the longest does
    not fit; sent: what this rank sends, in parts. The other three do the same, except that first() is a list with an
    item for each rank in gather_object_plain and exchange_objects_plain, and `sent` is a list of such parts in
    scatter_object_plain and exchange_objects_plain, and that rest returns the result on every rank.
    """

    gather_object_plain: ObjectShortcut | None = None
    """gather_object_plain(obj, dst, codec, constructor, rest); dst: None for every rank."""

    scatter_object_plain: ObjectShortcut | None = None
    """scatter_object_plain(objs, src, codec, constructor, rest)"""

    exchange_objects_plain: Callable[..., Any] | None = None
    """exchange_objects_plain(objs, codec, constructor, rest): send objs[i] to rank i, and return a list by rank of
    what has come. It supports every list; rest(codec, first, sent).
    """
