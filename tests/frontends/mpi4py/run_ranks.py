"""What an mpi4py program does, checked on every rank: messages, collectives, communicators and datatypes."""

import marshal
import pickle
import signal
import time
from fractions import Fraction

import numpy as np
import pytest
from mpi4py import MPI

from rankwise import MismatchError

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
status = MPI.Status()


def equal(found: object, expected: object) -> None:
    assert np.array_equal(found, expected), (found, expected)


def objects() -> None:
    equal(comm.bcast([1, "a"] if rank == 0 else None), [1, "a"])
    assert comm.gather(rank, root=0) == (list(range(size)) if rank == 0 else None)
    assert comm.allgather({"rank": rank}) == [{"rank": i} for i in range(size)]
    assert comm.scatter([i * i for i in range(size)] if rank == 0 else None) == rank * rank
    assert comm.alltoall([(rank, i) for i in range(size)]) == [(i, rank) for i in range(size)]
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
    mine = np.zeros(1)
    comm.Reduce_scatter_block(np.arange(size, dtype=float), mine)
    equal(mine, [size * rank])
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


def object_messages() -> None:
    sent = [
        7,
        {"a": [1.5, None]},
        np.arange(10),
        np.arange(100_000),
        "x" * 50_000,
        {MPI.COMM_WORLD.size},
        Fraction(1, 3),
    ]
    for tag, one in enumerate(sent):
        request = comm.isend(one, right, tag)
        got = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        assert (status.source, status.tag, status.count > 0) == (left, tag, True)
        equal(got, one)
        request.wait()
        receive = comm.irecv(source=left)
        comm.send(one, right, tag)
        equal(receive.wait(), one)
        equal(comm.sendrecv(one, right, source=left), one)
    comm.Barrier()
    MPI.pickle.__init__(marshal.dumps, marshal.loads, protocol=None)
    request = comm.isend([1, 2], right)
    equal(comm.recv(source=left, status=status), [1, 2])
    request.wait()
    MPI.pickle.__init__()
    comm.Barrier()


def messages() -> None:
    longer, sent = np.full(10, -1.0), np.full(4, float(rank))
    for receive in range(3):  # a message may be shorter than the buffer
        request = comm.Isend([sent, MPI.DOUBLE], right, tag=receive)
        if receive == 0:
            comm.Recv(longer, left, receive, status)
        elif receive == 1:
            comm.Irecv(longer, MPI.ANY_SOURCE, receive).Wait(status)
        else:
            comm.Mprobe(left, receive, status).Recv(longer)
        equal(longer, [left] * 4 + [-1.0] * 6)
        assert (status.Get_count(MPI.DOUBLE), status.source, status.tag) == (4, left, receive)
        request.Wait()
    request = comm.Isend([sent, 2, MPI.DOUBLE], right, 4)
    comm.Recv([longer, 3, MPI.DOUBLE], left, status=status)
    equal((longer[1], longer[2], status.Get_count(MPI.DOUBLE)), (left, left, 2))
    request.Wait()
    two = [np.zeros(3), np.zeros(1)]  # the first receive posted gets the first message, whatever the lengths
    receives = [comm.Irecv(x, left, 5) for x in two]
    for value in (1.0, 2.0):
        comm.Send(np.full(1, value), right, 5)
    MPI.Request.Waitall(receives)
    equal([two[0][0], two[1][0]], [1, 2])
    try:
        request = comm.Isend(np.zeros(3), right, 6)
        comm.Recv(np.zeros(1), left, 6)
        raise AssertionError("a message that is too long was received")
    except MPI.Exception as error:
        equal(error.Get_error_class(), MPI.ERR_TRUNCATE)
    request.Wait()
    request = comm.Irecv(np.zeros(1), left)
    comm.Send(np.zeros(3), right, 7)
    try:
        request.Wait()
        raise AssertionError("a message that is too long was received")
    except MPI.Exception as error:
        equal(error.Get_error_class(), MPI.ERR_TRUNCATE)
    for persistent in (False, True):  # a buffer receives an object's encoding, even if the status is asked for first
        encoded = np.zeros(200, np.uint8)
        request = comm.Recv_init(encoded, left, 9) if persistent else comm.Irecv(encoded, left, 9)
        if persistent:
            request.Start()
        comm.send({"from": rank}, right, 9)
        while not request.Get_status(status):
            pass
        count = status.Get_count()
        assert request.wait(status) is None
        assert (status.source, status.tag, status.Get_count()) == (left, 9, count)
        equal(pickle.loads(encoded[:count].tobytes())["from"], left)
    assert comm.Iprobe() is False
    comm.Barrier()
    in_bytes = bytearray(64)  # the datatypes may differ, and a refused message keeps its place
    comm.Isend(np.arange(3.0), right, 8).Wait()
    comm.Irecv([in_bytes, MPI.BYTE], left, 8).Wait(status)
    equal(np.frombuffer(in_bytes, "d", 3), [0, 1, 2])
    equal(status.Get_count(MPI.DOUBLE), 3)
    large = np.arange(300_000)
    for bigger in (0, 5):  # with the length that is expected, and with another one
        into = np.zeros(large.size + bigger, int)
        requests = [comm.Irecv(into, MPI.ANY_SOURCE, 9), comm.Isend(large, right, 9)]
        MPI.Request.Waitall(requests)
        equal(into[: large.size], large)
        comm.Sendrecv(large, right, 9, into, left, 9, status)
        equal((into[-1 - bigger], status.Get_count(MPI.LONG)), (large[-1], large.size))
    rows = np.zeros((4, 4))
    request = comm.Irecv([rows, 1, MPI.DOUBLE.Create_vector(4, 1, 4).Commit()], left, 10)
    comm.send(None, right, 10)  # which mpi4py sends as nothing
    request.Wait(status)
    equal((rows.any(), status.Get_count()), (False, 0))
    request = comm.Irecv([rows, 1, MPI.DOUBLE.Create_vector(4, 1, 4).Commit()], left, 10)
    comm.Send(np.arange(4.0), right, 10)
    request.Wait()
    equal(rows, [[i, 0, 0, 0] for i in range(4)])
    comm.Barrier()
    several = [comm.Irecv(np.zeros(1), left, tag) for tag in (11, 12, 13)]
    comm.Send(np.zeros(1), right, 12)
    equal((MPI.Request.Waitany(several, status), status.tag), (1, 12))
    equal((bool(several[1]), several[0].Test()), (False, False))
    comm.Barrier()  # the others are sent only now
    for tag in (13, 11):
        comm.Send(np.zeros(1), right, tag)
    done: list[int] = []
    while (some := MPI.Request.Waitsome(several)) is not None:
        done += some
    equal(sorted(done), [0, 2])
    comm.Barrier()
    comm.Barrier()
    comm.Send(np.zeros(1), MPI.PROC_NULL)
    comm.Recv(np.zeros(1), MPI.PROC_NULL, status=status)
    assert status.source == MPI.PROC_NULL
    nothing = comm.mprobe(MPI.PROC_NULL)
    assert nothing == MPI.MESSAGE_NO_PROC
    assert nothing.recv() is None
    assert nothing == MPI.MESSAGE_NULL != MPI.MESSAGE_NO_PROC
    comm.send("found", right, 15)
    matched = comm.mprobe(left, 15)
    matched.free()
    assert matched.recv() == "found"
    request = comm.Issend(np.full(3, 4.0), rank, 14)
    request.Cancel()
    request.Wait(status)
    assert status.Is_cancelled()
    assert not comm.iprobe(rank, 14)


def synchronous_messages() -> None:
    x, y = np.arange(6.0), np.zeros(3)
    persistent = comm.Ssend_init(x[3:], right, 17)
    persistent.Start()
    every_second = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    misaligned = np.zeros(25, "u1")[1:].view(float)
    misaligned[:] = x[3:]
    sends = [persistent, comm.Issend([x, 1, every_second], right, 17)]
    sends += [comm.Issend(misaligned, right, 17), comm.issend(np.full(9_000, 7), right, 17)]
    comm.Probe(left, 17)
    comm.Barrier()
    assert not any(request.Test() for request in sends)  # no receive has matched them
    comm.Barrier()
    for expected in ([3, 4, 5], [0, 2, 4], [3, 4, 5]):
        comm.Recv(y, left, 17)
        equal(y, expected)
    equal(comm.recv(source=left, tag=17), np.full(9_000, 7))
    MPI.Request.Waitall(sends)
    early = comm.Irecv(y, left, 19)
    comm.Barrier()
    comm.Ssend(x[:3], right, 19)  # which the receiver need not wait for
    comm.Barrier()
    early.Wait()
    equal(y, x[:3])
    if size > 1 and rank < 2:
        if rank == 0:
            comm.Ssend(x[:3], 1, 18)
            comm.ssend("object", 1, 18)
        else:
            time.sleep(0.05)  # so that rank 0 waits for the receive
            comm.Recv(y, 0, 18)
            equal(y, x[:3])
            assert comm.recv(source=0, tag=18) == "object"


def interrupted_send() -> None:
    def give_up(*_: object) -> None:
        raise TimeoutError

    if size > 1 and rank == 0:
        x = np.arange(3.0)
        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError):
            comm.Ssend(x, 1, 20)
        signal.signal(signal.SIGALRM, before)
        x[:] = 9
        comm.Send(x, 1, 20)
    comm.Barrier()
    if rank == 1:
        y = np.zeros(3)
        comm.Recv(y, 0, 20)
        if y[0] != 9:  # where memory of other processes is out of reach, it is delivered as it was
            equal(y, [0, 1, 2])
            comm.Recv(y, 0, 20)
        equal(y, [9, 9, 9])
        assert not comm.iprobe(0, 20)


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
    *(objects, buffers, vectors, buffers_that_do_not_fit, windows),
    *(object_messages, messages, synchronous_messages, interrupted_send, communicators, datatypes),
):
    check()
comm.Barrier()
print("all well")
