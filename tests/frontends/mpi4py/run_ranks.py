"""What an mpi4py program does, checked on every rank: messages, collectives, communicators and datatypes."""

import time
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from check_messages import (
    equal,
    fails,
    interrupted_send,
    messages,
    messages_are_matched_once,
    messages_that_do_not_fit,
    object_messages,
    synchronous_messages,
)
from mpi4py import MPI

from rankwise import MismatchError

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
status = MPI.Status()


def objects() -> None:
    equal(comm.bcast([1, "a"] if rank == 0 else None), [1, "a"])
    assert comm.gather(rank, root=0) == (list(range(size)) if rank == 0 else None)
    assert comm.allgather({"rank": rank}) == [{"rank": i} for i in range(size)]
    assert comm.scatter([i * i for i in range(size)] if rank == 0 else None) == rank * rank
    for long in ([], [0], [size - 1], range(size)):  # ranks that send what does not fit into a block

        def item(src: int, dst: int, long: Sequence[int] = long) -> tuple[object, ...]:
            return src, dst, Fraction(src, 7), "x" * (1000 * dst if src in long else 1)

        assert comm.alltoall([item(rank, i) for i in range(size)]) == [item(i, rank) for i in range(size)]
        arrays = comm.alltoall([np.full(100 * (rank in long), i) for i in range(size)])
        assert all((x == rank).all() and x.size == 100 * (src in long) for src, x in enumerate(arrays))
    own = [[]] * size
    assert all(found is not own[0] for found in comm.alltoall(own))
    assert comm.allreduce(rank + 1, op=MPI.PROD) == np.prod(range(1, size + 1))
    assert comm.allreduce((rank % 2, rank), op=MPI.MAXLOC) == (int(size > 1), int(size > 1))
    assert comm.allreduce(rank, op=max) == comm.allreduce(rank, op=MPI.MAX) == size - 1
    assert comm.scan(1) == rank + 1
    assert comm.exscan(1) == (rank or None)
    equal(comm.allreduce(np.full(3, rank)), np.full(3, sum(range(size))))
    request = comm.isend({"from": rank, "big": np.arange(50_000)}, right, tag=3)
    found = comm.recv(source=left, tag=3, status=status)
    assert (found["from"], found["big"][-1], status.Get_source(), status.Get_tag()) == (left, 49_999, left, 3)
    request.wait()
    assert comm.sendrecv(rank, dest=right, source=left) == left
    MPI.pickle.__init__(lambda obj, protocol=None: b"*" + repr(obj).encode(), lambda data: eval(bytes(data)[1:]))
    try:
        assert comm.bcast(("other", 1) if rank == 0 else None) == ("other", 1)
        assert comm.sendrecv(rank, dest=right, source=left) == left
        assert comm.alltoall([(rank, i) for i in range(size)]) == [(i, rank) for i in range(size)]
    finally:
        MPI.pickle.__init__()
    MPI.pickle.PROTOCOL = None
    data, buffers = MPI.pickle.dumps_oob(np.zeros(1 << 20))
    equal(MPI.pickle.loads_oob(data, buffers), np.zeros(1 << 20))
    assert [buffer.nbytes for buffer in buffers] == [8 << 20]
    MPI.pickle.__init__()


def buffers() -> None:
    for dtype in ("i1", "u8", "f4", "f8", "F", "g"):
        x, y = np.full((2, 3), rank, dtype), np.empty((3, 2), dtype)
        comm.Allreduce(x, y)
        equal(y, np.full((3, 2), sum(range(size)), dtype))
        comm.Allreduce(MPI.IN_PLACE, x)
        equal(x, y.reshape(2, 3))
    every = np.empty((size, 2))
    comm.Allgather(np.array([rank, 0.5]), every)
    equal(every, [[i, 0.5] for i in range(size)])
    given, taken = np.arange(2.0 * size) + 100 * rank, np.empty(2 * size)
    comm.Alltoall([given, 2, MPI.DOUBLE], [taken, 2, MPI.DOUBLE])
    equal(taken.reshape(size, 2), [[100 * i + 2 * rank, 100 * i + 2 * rank + 1] for i in range(size)])
    comm.Gather([given, 1, MPI.DOUBLE], [taken, 1, MPI.DOUBLE] if rank == 0 else None)
    equal(taken[:size] if rank == 0 else [], [100 * i for i in range(size)] if rank == 0 else [])
    counts = [i + 1 for i in range(size)]
    lengths = np.zeros(sum(counts) + 2, "i")
    displs = [2 + sum(counts[:i]) for i in range(size)]
    comm.Allgatherv([np.full(rank + 1, rank, "i"), MPI.INT], [lengths, counts, displs, MPI.INT])
    equal(lengths[2:], np.repeat(range(size), counts))
    comm.Gatherv(np.full(rank + 1, rank, "i"), [lengths, (counts, displs), MPI.INT] if rank == 0 else None)
    part = np.zeros(rank + 1, "i")
    comm.Scatterv([lengths, counts, displs, MPI.INT] if rank == 0 else None, part)
    equal(part, np.full(rank + 1, rank))
    for order in (range(size), range(size - 1, -1, -1)):  # how the blocks follow each other
        begins = [sum(counts[j] for j in order if (j < i if order.step > 0 else j > i)) for i in range(size)]
        wanted = np.concatenate([np.full(counts[i], i, "i") for i in order])
        for form in (list, tuple, np.array):
            room, displs = np.full(sum(counts), -1, "i"), form(begins)
            comm.Allgatherv(np.full(rank + 1, rank, "i"), [room, form(counts), displs, MPI.INT])
            equal(room, wanted)
            room[:] = -1
            comm.Igatherv(np.full(rank + 1, rank, "i"), [room, (counts, displs)] if rank == 0 else None).Wait()
            equal(room, wanted if rank == 0 else np.full(sum(counts), -1))
            part[:] = -1
            comm.Scatterv([wanted, counts, displs, MPI.INT] if rank == 0 else None, part)
            equal(part, np.full(rank + 1, rank))
    mine = np.zeros(1)
    comm.Reduce_scatter_block(np.arange(size, dtype=float), mine)
    equal(mine, [size * rank])
    part = np.zeros(2)
    comm.Reduce_scatter_block([np.arange(2.0 * size), 2, MPI.DOUBLE], [part, 2, MPI.DOUBLE])  # counts of one block
    equal(part, [size * 2 * rank, size * (2 * rank + 1)])
    with pytest.raises(ValueError, match="mismatch in send count"):
        comm.Reduce_scatter_block(np.zeros(2 * size), np.zeros(3))
    total, begin = sum(counts), sum(counts[:rank])
    given, wanted = np.arange(float(total)) + rank, size * np.arange(float(total)) + sum(range(size))
    wanted = wanted[begin : begin + counts[rank]]
    column = MPI.DOUBLE.Create_vector(counts[rank], 1, 2).Commit()
    for recvcounts in (counts, np.array(counts), None):
        rows = np.zeros((counts[rank], 2))
        if rank % 2:  # such ranks go another way than the others, and meet them
            comm.Reduce_scatter(given, [rows, 1, column], recvcounts)
            equal(rows[:, 0], wanted)
        else:
            comm.Reduce_scatter(given, rows[: (counts[rank] + 1) // 2].reshape(-1)[: counts[rank]], recvcounts)
            equal(rows.reshape(-1)[: counts[rank]], wanted)
    room = np.zeros(counts[rank] + 1)  # may be longer
    comm.Ireduce_scatter(given, room, counts, op=MPI.MAX).Wait()
    equal(room, [*np.arange(float(total))[begin : begin + counts[rank]] + size - 1, 0])
    comm.Ireduce_scatter_block(np.arange(size, dtype=float), mine).Wait()
    equal(mine, [size * rank])
    if rank == 0:  # which waits for nobody before the request is waited for
        request = comm.Ireduce_scatter(np.ones(size), mine)
        for other in range(1, size):
            comm.Send(mine, other)
    else:
        comm.Recv(np.zeros(1), 0)
        request = comm.Ireduce_scatter(np.ones(size), mine)
    request.Wait()
    equal(mine, [size])
    refused = (("C_BOOL", "SUM"), ("BYTE", "MAX"), ("FLOAT", "LAND"), ("C_DOUBLE_COMPLEX", "MIN"), ("INT", "MINLOC"))
    for kind, op in refused:
        x = [np.zeros(16, "u1"), 1, getattr(MPI, kind)]
        for call in (comm.Allreduce, comm.Iallreduce, comm.Scan):
            fails(MPI.ERR_OP, call, MPI.IN_PLACE, x, getattr(MPI, op))
    fails(MPI.ERR_OP, comm.Allreduce, np.array([True]), np.array([True]))
    with pytest.raises(ValueError, match="mismatch in send count 2 and receive count 3"):
        MPI.SUM.Reduce_local(np.zeros(2, bool), np.zeros(3, bool))
    letters = np.full(1, 3, "i1").view("S1")
    comm.Allreduce(MPI.IN_PLACE, [letters, MPI.CHAR])
    equal(letters.view("i1"), [3 * size])
    total = np.zeros(1)
    comm.Scan(np.ones(1), total)
    equal(total, [rank + 1])
    request = comm.Iallreduce(np.ones(1), total)
    request.Wait()
    equal(total, [size])
    plan = comm.Bcast_init(mine, root=size - 1)
    for step in range(3):
        mine[0] = step if rank == size - 1 else -1
        plan.Start()
        plan.Wait()
        equal(mine, [step])
    truth = np.array([rank == 0, True])
    comm.Allreduce(MPI.IN_PLACE, truth, op=MPI.LAND)
    equal(truth, [size == 1, True])


def vectors() -> None:
    """Vector collectives, whose buffers are specified in every form; another one on each rank."""
    for scale in (1, 100, 20_000):  # so that the blocks travel in a header, in a slot, or separately
        vectors_of([2 * i % 3 * scale for i in range(size)])


def vectors_of(counts: list[int]) -> None:
    starts = [sum(counts[:i]) for i in range(size)]
    forms = (
        lambda x: [x, counts],
        lambda x: [x, counts, MPI.DOUBLE],
        lambda x: [x, np.array(counts), np.array(starts), MPI.DOUBLE],
        lambda x: [x, (np.array(counts, "i"), starts)],
        lambda x: [x, (counts, None), "d"],
    )
    expected = np.repeat(np.arange(size), counts) + 0.5
    for turn in range(len(forms)):
        form = forms[(rank + turn) % len(forms)]
        room = np.zeros(sum(counts) + 1)
        mine = np.full(counts[rank], rank + 0.5)
        comm.Allgatherv(mine, form(room))
        equal(room[:-1], expected)
        room[:] = 0
        comm.Gatherv([mine, MPI.DOUBLE], form(room) if rank == turn % size else None, root=turn % size)
        equal(room[:-1], expected if rank == turn % size else 0 * expected)
        part = np.zeros(counts[rank])
        comm.Scatterv(form(expected * 2) if rank == turn % size else None, part, root=turn % size)
        equal(part, [2 * rank + 1.0] * counts[rank])
        sent, got = np.full(size * counts[rank], rank + 0.5), np.zeros(sum(counts))
        comm.Alltoallv([sent, [counts[rank]] * size], form(got))
        equal(got, expected)
    for alone in (MPI.COMM_SELF, MPI.COMM_SELF.Dup()):  # a group of one has no slots
        for length in (1, 100, 3000, 100_000):
            mine, into = np.full(length, rank + 0.5), np.zeros(length)
            alone.Scatterv([mine, [length]], into)
            equal(into, mine)
            alone.Gatherv(into, [into, [length]])
            equal(into, mine)
            assert alone.gather(mine.tolist()) == [mine.tolist()]
    part = np.full(2 * size, -1.0)
    comm.Allgatherv(part[:1], [part, [1] * size])  # from memory that it receives in
    equal(part[:size], np.full(size, -1))


def gather_and_wait(own: MPI.Comm, mine: object, into: object) -> None:
    own.Gatherv(mine, into)
    own.Barrier()


def buffers_that_do_not_fit() -> None:
    """Every rank refuses them before anything is sent."""
    large, little = np.zeros(300_000), np.zeros(size)
    for call, given, taken in (
        (comm.Allgather, large, little),
        (comm.Gather, large, little if rank == 0 else None),
        (comm.Alltoall, np.zeros(size * 300_000), little),
        (comm.Scatter, little if rank == 0 else None, large),
        (comm.Allgatherv, large, [little, [1] * size]),
    ):
        if given is None or taken is None:
            continue  # the root alone knows both
        try:
            call(given, taken)
            raise AssertionError(f"{call.__name__}: buffers that do not fit were taken")
        except MPI.Exception as error:
            equal(error.Get_error_class(), MPI.ERR_TRUNCATE)
    comm.Barrier()
    for more in (1, 5000) if size > 1 else ():  # only the root knows that rank 1 sends too much
        own = comm.Dup()
        with pytest.raises(MismatchError, match=f"rank 1 sends {8 + 8 * more} bytes to rank 0, which expects 8"):
            gather_and_wait(own, np.zeros(1 + more * (rank == 1)), [little, [1] * size] if rank == 0 else None)


def windows() -> None:
    """One array of all ranks, from the memory of the first, and each rank's own."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    window = MPI.Win.Allocate_shared(8 * (size + 1) if rank == 0 else 0, 8, comm=host)
    memory, unit = window.Shared_query(0)
    equal((unit, len(memory), window.flavor), (8, 8 * (size + 1), MPI.WIN_FLAVOR_SHARED))
    table = np.ndarray(buffer=memory, dtype="d", shape=(size + 1,))
    table[rank] = rank + 0.5
    for _ in range(20):
        window.Lock(0)
        table[size] += 1
        window.Unlock(0)
    window.Fence()
    equal(table, [*(np.arange(size) + 0.5), 20 * size])
    window.Free()
    equal(bool(window), False)
    window = MPI.Win.Allocate_shared(4, comm=host)
    np.frombuffer(window.tomemory(), "i")[:] = rank
    window.Lock_all()
    window.Sync()
    host.Barrier()
    equal([int(np.frombuffer(window.Shared_query(i)[0], "i")[0]) for i in range(size)], range(size))
    window.Unlock_all()
    window.Free()
    try:
        MPI.Win.Allocate_shared(rank - 1, comm=comm)
        raise AssertionError("a negative size was taken")
    except MPI.Exception as error:
        equal(error.Get_error_class(), MPI.ERR_SIZE)


def window_locks() -> None:
    """Readers and a writer exclude each other; each writer fills the memory of rank 0 twice."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    window = MPI.Win.Allocate_shared(16 if rank == 0 else 0, 8, comm=host)
    memory = np.frombuffer(window.Shared_query(0)[0], "i8")
    for step in range(30):
        window.Lock(0, MPI.LOCK_EXCLUSIVE)
        memory[0] += 1
        if step % 10 == 0:
            time.sleep(0.001)
        memory[1] += 1
        window.Unlock(0)
        window.Lock(0, MPI.LOCK_SHARED)
        first, second = memory.tolist()
        assert first == second >= step + 1
        window.Unlock(0)
    window.Fence()
    equal(memory, [30 * size] * 2)
    window.Lock(0, MPI.LOCK_SHARED)
    host.Barrier()  # all have it together
    window.Unlock(0)
    window.Lock_all()
    fails(MPI.ERR_RMA_SYNC, window.Lock, 0)
    host.Barrier()
    window.Unlock_all()
    fails(MPI.ERR_RMA_SYNC, window.Unlock, 0)
    fails(MPI.ERR_LOCKTYPE, window.Lock, 0, 99)
    window.Free()


def communicators() -> None:
    half = comm.Split(rank % 2, -rank)
    assert half.allgather(rank) == [i for i in reversed(range(size)) if i % 2 == rank % 2]
    assert MPI.Group.Translate_ranks(half.Get_group(), [0], comm.Get_group())[0] == half.bcast(rank)
    half.Free()
    first = comm.Get_group().Incl([0])
    alone = comm.Create_group(first) if rank == 0 else MPI.COMM_NULL
    assert bool(alone) == (rank == 0)
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert host.size == size
    cart = comm.Create_cart(MPI.Compute_dims(size, 2), periods=[True, False])
    assert cart.Get_cart_rank(cart.coords) == cart.rank
    assert len(cart.Sub([True, False]).allgather(0)) == cart.dims[0]
    info = MPI.Info.Create({"a": "1", "b": "2"})
    assert (info.pop("a"), info.items(), "a" in info, MPI.INFO_NULL.get("a")) == ("1", [("b", "2")], False, None)
    copy = comm.Dup()
    assert MPI.Comm.Compare(comm, copy) == MPI.CONGRUENT
    copy.Free()
    if rank == 0:  # which waits for nobody before the request is waited for
        copy, request = comm.Idup()
        for other in range(1, size):
            comm.Send(np.zeros(1), other)
    else:
        comm.Recv(np.zeros(1), 0)
        copy, request = comm.Idup()
    assert not copy or request.Test()
    request.Wait()
    equal(copy.allgather(rank), range(size))
    equal(MPI.Comm.Compare(comm, copy), MPI.CONGRUENT)
    copy.Free()
    nothing = comm.Create_cart([0])
    equal((type(nothing), nothing == MPI.COMM_NULL), (MPI.Cartcomm, True))
    fails(MPI.ERR_ARG, comm.Create_cart, [size + 1])
    fails(MPI.ERR_DIMS, comm.Create_cart, [-1])


def groups() -> None:
    """What MPICH and Open MPI give."""
    group = comm.Get_group()
    assert group == comm.Get_group() != group.Dup()
    equal(group.Compare(group.Dup()), MPI.IDENT)
    equal(group.Range_incl([(size - 1, 0, -1)]).Translate_ranks(), list(reversed(range(size))))
    for impossible in ([(0, 0, 0)], [(0, size, 1)], [(0, 0, 1), (0, 0, 1)], [(0, size - 1, -1)] * (size > 1)):
        if impossible:
            fails(MPI.ERR_ARG, group.Range_incl, impossible)
            fails(MPI.ERR_ARG, group.Range_excl, impossible)
    MPI.GROUP_EMPTY.Free()  # has no effect
    assert group.Incl([]) == MPI.GROUP_EMPTY != MPI.GROUP_NULL
    last = group.Incl([size - 1])
    equal(group.Translate_ranks(None, last), [MPI.UNDEFINED] * (size - 1) + [0])
    equal(last.Translate_ranks([0, MPI.PROC_NULL], group), [size - 1, MPI.PROC_NULL])


def datatypes() -> None:
    grid = np.arange(20.0).reshape(4, 5)
    column = MPI.DOUBLE.Create_vector(4, 1, 5).Commit()
    request = comm.Isend([grid, 1, column], right)
    found = np.empty(4)
    comm.Recv(found, left)
    request.Wait()
    equal(found, grid[:, 0])
    inner = MPI.DOUBLE.Create_subarray([4, 5], [2, 2], [1, 2]).Commit()
    into = np.zeros((4, 5))
    freed = MPI.DOUBLE.Create_vector(4, 1, 5).Commit()
    request = comm.Irecv([into, 1, freed], left)
    again = comm.Recv_init([into, 1, freed], left)
    freed.Free()
    comm.Send(grid[:, 1].copy(), right)
    request.Wait()
    equal(into[:, 0], grid[:, 1])
    again.Start()
    comm.Send(grid[:, 2].copy(), right)
    again.Wait()
    equal(into[:, 0], grid[:, 2])
    into[:] = 0
    pairs = np.empty(2 * size + 1, "i4")
    spec = [pairs, ([1] * size, [2 * i for i in range(size)]), MPI.INT]
    own = np.array([rank], "i4")
    for request in (comm.Iallgatherv(own, spec), comm.Allgatherv_init(own, spec)):
        if isinstance(request, MPI.Prequest):
            request.Start()
        request.Wait()
        equal(pairs[: 2 * size : 2], range(size))
        pairs[:] = -1
    request = comm.Isend(np.array([rank, 5], "i4"), right)
    comm.Recv([pairs, (2, 1), MPI.INT], left)
    request.Wait()
    equal(pairs[1:3], [left, 5])
    kind, op = MPI.DOUBLE.Dup(), MPI.Op.Create(lambda a, b, t: np.copyto(b, a), commute=False)
    first = np.empty(2)
    request = comm.Iallreduce([np.array([rank, 1.0]), kind], [first, kind], op)
    kind.Free()
    op.Free()
    request.Wait()
    assert first[1] == 1
    comm.Alltoallw([grid, [inner] * size], [into, [inner] * size])
    equal(into[1:3, 2:4], grid[1:3, 2:4])
    assert into.sum() == grid[1:3, 2:4].sum()
    assert MPI.FLOAT32_T == MPI.FLOAT != MPI.FLOAT16_T
    assert MPI.DOUBLE.Create_contiguous(1 << 31).Create_vector(2, 1, 2).size == 1 << 35  # in little memory
    codes = ("DOUBLE", "INT", "CHAR", "BYTE", "WCHAR", "AINT", "C_BOOL", "CXX_BOOL", "INT32_T", "FLOAT32_T", "REAL8")
    equal([getattr(MPI, name).tocode() for name in codes], [*"dicBUp", "b1", "?", "i4", "f", "f8"])
    equal((MPI.DOUBLE.Dup().tocode(), column.typestr, column.typechar), ("d", "V128", "V"))
    for kind in (column, MPI.DOUBLE_INT):
        with pytest.raises(ValueError, match="cannot map"):
            kind.tocode()
    assert (MPI.Datatype.fromcode("i4"), MPI.SIGNED_LONG) == (MPI.INT32_T, MPI.LONG)
    with pytest.raises(ValueError, match="cannot map code '>f8' to MPI datatype"):
        MPI.Datatype.fromcode(">f8")  # whose bytes are in another order than DOUBLE's
    struct, byte = MPI.Datatype.Create_struct, MPI.SIGNED_CHAR
    for extent, first, place in (  # padded as the C compiler pads the struct
        *((32, MPI.DOUBLE.Create_contiguous(3), 24), (48, MPI.DOUBLE.Create_vector(3, 1, 2), 40)),
        *((24, struct([1, 1], [0, 8], [MPI.DOUBLE, byte]), 16), (16, MPI.INT.Create_contiguous(3), 12)),
        *((24, MPI.DOUBLE_INT, 16), (4, byte.Create_contiguous(3), 3), (32, MPI.DOUBLE.Create_resized(0, 24), 24)),
        *((40, MPI.DOUBLE.Create_subarray([4], [2], [1]), 32), (9, MPI.DOUBLE.Create_contiguous(0), 8)),
    ):
        equal(struct([1, 1], [0, place], [first, byte]).extent, extent)
    for sizes, parts, starts in (([0], [0], [0]), ([3], [0], [3])):
        equal(MPI.DOUBLE.Create_subarray(sizes, parts, starts).size, 0)
    record = np.zeros(2, [("a", "i4"), ("b", "f8")])
    fields = [record.dtype.fields[name][1] for name in "ab"]
    kind = MPI.Datatype.Create_struct([1, 1], fields, [MPI.INT, MPI.DOUBLE]).Create_resized(0, record.itemsize)
    record["a"], record["b"] = rank, 0.5
    comm.Bcast([record, 2, kind])
    assert record.tolist() == [(0, 0.5)] * 2
    largest = MPI.Op.Create(lambda a, b, t: np.copyto(b, np.maximum(a, b)), commute=True)
    x, y = np.array([rank], "u1"), np.empty(1, "u1")
    comm.Allreduce([x, MPI.BYTE], [y, MPI.BYTE], largest)
    equal(y, [size - 1])


for check in (
    *(objects, buffers, vectors, buffers_that_do_not_fit, windows, window_locks),
    *(object_messages, messages, messages_that_do_not_fit, messages_are_matched_once),
    *(synchronous_messages, interrupted_send, communicators, groups, datatypes),
):
    check()
comm.Barrier()
print("all well")
