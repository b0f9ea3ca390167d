"""What few mpi4py programs do, checked on every rank; under any MPI too: `mpiexec -n 2 python check_seldom.py`."""

import numpy as np
import pytest
from check_messages import comm, equal, left, rank, right, size, status
from mpi4py import MPI


def numbers(who: int, count: int = 3) -> np.ndarray:
    return np.arange(count, dtype=float) + 10 * who


def scans_and_parts() -> None:
    x, y = numbers(rank), np.full(3, -1.0)
    comm.Exscan(x, y)
    equal(y, sum((numbers(i) for i in range(rank)), np.zeros(3)) if rank else np.full(3, -1.0))
    comm.Iexscan(x, y, MPI.MAX).Wait()
    equal(y, numbers(rank - 1) if rank else np.full(3, -1.0))
    counts = [i + 1 for i in range(size)]
    x, part = np.arange(sum(counts)) * (rank + 1), np.empty(counts[rank], int)
    whole, at = np.arange(sum(counts)) * sum(range(1, size + 1)), sum(counts[:rank])
    for into, of in ((part, counts), (np.zeros_like(part), counts)):
        comm.Reduce_scatter(x, into, of)
        equal(into, whole[at : at + counts[rank]])
    zeros, ints, given, received = [0] * size, [MPI.INT] * size, np.arange(2 * size, dtype="i"), np.full(2, -1, "i")
    sent = [None, zeros, zeros, ints] if rank else [given, [2] * size, range(0, 8 * size, 8), ints]  # by rank 0 alone
    comm.Alltoallw(sent, [received, ([2, *zeros[1:]], zeros), ints])
    equal(received, [2 * rank, 2 * rank + 1])
    comm.Alltoallw([None, zeros, zeros, ints], [None, (zeros, zeros), ints])
    comm.Ireduce_scatter(x, part, counts, MPI.MIN).Wait()
    equal(part, np.arange(sum(counts))[at : at + counts[rank]])


def grids() -> None:
    dims = MPI.Compute_dims(size, 2)
    grid = comm.Create_cart(dims, periods=[True, False])
    assert grid.Get_topology() == MPI.CART
    assert (grid.dim, list(grid.dims)) == (2, list(dims))
    here = grid.Get_coords(grid.rank)
    assert grid.Get_cart_rank(here) == grid.rank
    grid.dims[0] = grid.Get_topo()[1][0] = grid.periods[0] = 9  # in lists of the caller's own
    assert (list(grid.dims), list(grid.periods)) == (list(dims), [True, False])
    with pytest.raises(MPI.Exception):
        grid.Shift(-1, 1)
    for length in (1, 3):
        for call in (grid.Sub, grid.Get_cart_rank):
            with pytest.raises(ValueError, match=f"expecting 2 items, got {length}"):
                call([0] * length)
    for axis in (0, 1):
        before, after = grid.Shift(axis, 1)
        got = grid.sendrecv(grid.rank, after, source=before)
        beyond = list(here)
        beyond[axis] -= 1
        outside = axis == 1 and beyond[1] < 0
        assert got == (None if outside else grid.Get_cart_rank(beyond))
    row = grid.Sub([False, True])
    assert row.allreduce(1) == dims[1]
    row.Free()
    grid.Free()


def messages_in_both_directions() -> None:
    x = numbers(rank)
    comm.Sendrecv_replace(x, right, 1, left, 1, status)
    equal(x, numbers(left))
    assert (status.source, status.Get_count(MPI.DOUBLE)) == (left, 3)
    x, y = numbers(rank), np.empty(3)
    comm.Isendrecv(x, right, 2, y, left, 2).Wait()
    equal(y, numbers(left))
    comm.Isendrecv_replace(x, right, 3, left, 3).Wait()
    equal(x, numbers(left))


def modes_of_sending() -> None:
    MPI.Attach_buffer(bytearray(10_000 + 2 * MPI.BSEND_OVERHEAD))
    y = np.empty(3)
    x = numbers(rank)
    comm.Bsend(x, right, 4)
    sending = comm.Ibsend(x, right, 5)
    x[:] = -1  # the buffer has a copy
    for tag in (4, 5):
        comm.Recv(y, left, tag)
        equal(y, numbers(left))
    sending.Wait()
    receiving = comm.Irecv(y, left, 6)
    comm.Barrier()  # a ready send needs its receive
    comm.Rsend(numbers(rank), right, 6)
    receiving.Wait()
    equal(y, numbers(left))
    receiving = comm.irecv(source=left, tag=7)
    comm.Barrier()
    comm.Irsend(numbers(rank), right, 8)
    comm.bsend("object", right, 7)
    assert receiving.wait() == "object"
    comm.Recv(y, left, 8)
    equal(y, numbers(left))
    MPI.Detach_buffer()


def several_requests() -> None:
    ys = np.full((4, 3), -1.0)
    receives = [comm.Irecv(y, left, 10 + i) for i, y in enumerate(ys)]
    assert MPI.Request.Testsome(receives) == []
    comm.Barrier()
    for i in range(3):
        comm.Send(numbers(rank + i), right, 10 + i)
    open_ones = set(range(3))
    while open_ones:
        for i in MPI.Request.Waitsome(receives) or ():
            equal(ys[i], numbers(left + i))
            open_ones.remove(i)
    assert not MPI.Request.Testall(receives)
    assert MPI.Request.Testany(receives)[1] is False
    comm.Barrier()
    comm.Send(numbers(rank), right, 13)
    assert MPI.Request.Waitany(receives, status) == 3
    assert status.tag == 13
    assert MPI.Request.Testsome(receives) is None  # there is none that is not complete
    assert MPI.Request.Waitany(receives) == MPI.UNDEFINED
    assert (MPI.Request.waitall([]), MPI.Request.testall([])) == ([], (True, []))


def requests_of_a_freed_communicator() -> None:
    for count in (3, 300_000):
        own, y = comm.Dup(), np.empty(count)
        requests = [own.Irecv(y, left), own.irecv(source=left, tag=1), own.Ibarrier()]
        requests += [own.Isend(numbers(rank, count), right), own.isend("object", right, 1)]
        own.Free()
        assert MPI.Request.waitall(requests)[1] == "object"
        equal(y, numbers(left, count))


def matched_messages() -> None:
    assert comm.Improbe(left, 20, status) is None
    comm.Barrier()
    comm.Send(numbers(rank, 5), right, 20)
    while (message := comm.Improbe(left, 20, status)) is None:
        pass
    count = status.Get_count(MPI.DOUBLE)
    assert comm.Iprobe(left, 20) is False
    with pytest.raises(BufferError):
        message.Recv(bytes(8 * count))
    y = np.empty(count)
    message.Recv(y)
    equal(y, numbers(left, 5))
    assert message == MPI.MESSAGE_NULL


def packing_and_addresses() -> None:
    x, packed = numbers(rank), bytearray(MPI.DOUBLE.Pack_size(3, comm) + MPI.INT.Pack_size(1, comm))
    at = MPI.INT.Pack(np.array([rank], "i"), packed, 0, comm)
    at = MPI.DOUBLE.Pack(x, packed, at, comm)
    got = bytearray(len(packed))
    comm.Sendrecv([packed, at, MPI.PACKED], right, 30, [got, MPI.PACKED], left, 30)
    number, y = np.empty(1, "i"), np.empty(3)
    at = MPI.INT.Unpack(got, 0, number, comm)
    MPI.DOUBLE.Unpack(got, at, y, comm)
    assert number[0] == left
    equal(y, numbers(left))
    first, second = np.array([rank]), np.array([100 + rank])
    into = [np.empty(1, int), np.empty(1, int)]
    types = [
        MPI.Datatype.Create_struct([1, 1], [MPI.Get_address(array) for array in pair], [MPI.INT64_T] * 2).Commit()
        for pair in ((first, second), into)
    ]
    comm.Sendrecv([MPI.BOTTOM, 1, types[0]], right, 31, [MPI.BOTTOM, 1, types[1]], left, 31)
    assert [array[0] for array in into] == [left, 100 + left]
    for each in types:
        each.Free()


def bad_counts_and_operations() -> None:
    kind = MPI.DOUBLE
    for call in (
        lambda: kind.Create_contiguous(-1),
        lambda: kind.Create_vector(-1, 1, 1),
        lambda: kind.Create_indexed([1, -1], [0, 3]),
        lambda: kind.Create_subarray([3, 4], [1, 1], [0, 0], order=-1),
    ):
        with pytest.raises(MPI.Exception):
            call()
    for op in ("sum", kind):
        with pytest.raises(TypeError, match="Op"):
            comm.Allreduce(np.ones(1), np.empty(1), op)


def arguments_of_a_wrong_kind() -> None:
    info, objects, int_type = MPI.Info.Create(), np.array([1, None]), MPI.INT
    for error, text, calls in (
        ((TypeError, AttributeError), "function=3: expected|no attribute '__call__'", [lambda: MPI.Op.Create(3)]),
        (KeyError, "cannot map 'O'", [lambda: comm.Allreduce(objects, objects.copy()), lambda: comm.Bcast(objects)]),
        (
            TypeError,
            "=3: expected a str, got int|expected bytes, int found",
            [lambda: info.Set("key", 3), lambda: info.Set(3, "value"), lambda: MPI.Info.Create({"key": 3})],
        ),
        (
            ValueError,
            "expecting 2 items, got 1",
            [
                lambda: int_type.Create_indexed([1, 2], [1]),
                lambda: int_type.Create_subarray([4, 4], [2, 2], [0]),
                lambda: MPI.Datatype.Create_struct([1, 1], [0], [int_type, int_type]),
            ],
        ),
        (
            TypeError,
            "(root|dest|source|tag|color)=None: expected an int, got NoneType|an integer is required",
            [
                lambda: comm.bcast(0, None),
                lambda: comm.Bcast(np.zeros(2), None),
                lambda: comm.send(0, None),
                lambda: comm.Irecv(np.zeros(2), None),
                lambda: comm.isend(0, 0, None),
                lambda: comm.Split(None),
            ],
        ),
    ):
        for call in calls:
            with pytest.raises(error, match=text):
                call()
    assert not MPI.Info.Create(None).items()
    info.Set(b"key", b"value")
    assert info.items() == [("key", "value")]


def error_handlers_and_matched_sizes() -> None:
    own = comm.Dup()
    before = own.Get_errhandler()
    assert before == MPI.ERRORS_RETURN
    own.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    assert own.Get_errhandler() == MPI.ERRORS_ARE_FATAL
    own.Set_errhandler(before)
    before.Free()
    assert (bool(before), own.Get_errhandler()) == (False, MPI.ERRORS_RETURN)
    with pytest.raises(TypeError):
        own.Set_errhandler(3)
    own.Free()
    for kind, nbytes, code in (
        (MPI.TYPECLASS_REAL, 8, "f8"), (MPI.TYPECLASS_INTEGER, 2, "i2"), (MPI.TYPECLASS_COMPLEX, 16, "c16"),
        (MPI.TYPECLASS_LOGICAL, 4, "i4"),
    ):  # fmt: skip
        assert (found := MPI.Datatype.Match_size(kind, nbytes)).Get_size() == nbytes
        assert found.typestr == code
    for kind, nbytes in ((MPI.TYPECLASS_REAL, 3), (77, 4)):
        with pytest.raises(MPI.Exception):
            MPI.Datatype.Match_size(kind, nbytes)


def pickles() -> None:
    """Of what the program has made, as a message that it sends."""
    record = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Create_resized(0, 24)
    column, found, info = comm.sendrecv(
        (MPI.DOUBLE.Create_vector(3, 1, 2), record, MPI.Info.Create({"key": str(rank)})), right, source=left
    )
    assert (found.extent, found.size, dict(info)) == (24, 12, {"key": str(left)})
    x = np.zeros(5)
    comm.Sendrecv(numbers(rank), right, recvbuf=[x, 1, column.Commit()], source=left)
    equal(x[::2], numbers(left))


def user_operations_on_elements_with_gaps() -> None:
    """The function of an operation finds the elements by their extent, as in the program's arrays."""
    record = np.dtype([("number", "i4"), ("weight", "f8")], align=True)
    kind = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Commit()

    def combine(given: MPI.memory, into: MPI.memory, datatype: MPI.Datatype) -> None:
        x, y = np.frombuffer(given, record), np.frombuffer(into, record)
        y["number"] += x["number"]
        y["weight"] *= x["weight"]

    op = MPI.Op.Create(combine, commute=True)
    x, y = np.empty(2, record), np.zeros(2, record)
    x["number"], x["weight"] = [1, rank], [2, 3]
    comm.Allreduce([x, kind], [y, kind], op)
    equal(y["number"], [size, sum(range(size))])
    equal(y["weight"], [2.0**size, 3.0**size])
    op.Reduce_local([x, kind], [y, kind])
    equal(y["number"], [size + 1, sum(range(size)) + rank])
    op.Free()


def messages_that_end_within_an_element() -> None:
    column, into = MPI.INT.Create_vector(3, 2, 3).Commit(), np.full(18, -1, "i")
    places = [i for i in range(16) if i % 8 not in (2, 5)]  # of two columns
    for count in (1, 3, 4, 11):
        into[:] = -1
        comm.Sendrecv(np.arange(count, dtype="i"), right, 50, [into, 2, column], left, 50, status)
        equal(into[places[:count]], np.arange(count))
        assert (into == -1).sum() == into.size - count
    record = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Create_resized(0, 32).Commit()
    kinds = record, MPI.DOUBLE_INT.Create_contiguous(2).Commit()
    for nbytes, *elements in ((0, 0, 0), (4, 1, None), (8, None, 1), (12, 2, 2), (16, 3, None), (20, None, 3)):
        comm.Sendrecv(bytes(nbytes), right, 51, bytearray(24), left, 51, status)
        for kind, found in zip(kinds, elements, strict=True):
            equal(status.Get_elements(kind), MPI.UNDEFINED if found is None else found)
    for kind in kinds:
        for elements in range(4):
            status.Set_elements(kind, elements)
            equal(status.Get_elements(kind), elements)


class Dlpack:
    """An array that is known by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **how: object) -> object:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def memory_of_other_kinds() -> None:
    x, y = Dlpack(numbers(rank)), Dlpack(np.empty(3))
    comm.Sendrecv(x, right, 40, y, left, 40)
    equal(y.array, numbers(left))
    with pytest.raises(BufferError):
        comm.Irecv(np.float64(0), left, 40)
    comm.Send(np.float64(rank), right, 40)
    comm.Recv([y, 1, MPI.DOUBLE], left, 40)
    equal(y.array[0], left)
    comm.Allreduce(x, y, MPI.MAX)
    equal(y.array, numbers(size - 1))
    memory = MPI.Alloc_mem(24)
    inside = np.frombuffer(memory, float)
    inside[:] = numbers(rank)
    comm.Allreduce(MPI.IN_PLACE, inside)
    equal(inside, sum(map(numbers, range(size))))
    del inside
    MPI.Free_mem(memory)


for check in (
    *(scans_and_parts, grids, messages_in_both_directions, modes_of_sending, several_requests),
    *(matched_messages, packing_and_addresses, memory_of_other_kinds, user_operations_on_elements_with_gaps),
    *(messages_that_end_within_an_element, requests_of_a_freed_communicator, bad_counts_and_operations, pickles),
    *(arguments_of_a_wrong_kind, error_handlers_and_matched_sizes),
):
    check()
    comm.Barrier()
print("all well")
