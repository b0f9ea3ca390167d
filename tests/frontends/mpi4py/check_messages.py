"""What messages of an mpi4py program do, checked on every rank; run_ranks.py runs it."""

import marshal
import pickle
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
status = MPI.Status()


def equal(found: object, expected: object) -> None:
    assert np.array_equal(found, expected), (found, expected)


def fails(code: int, call: Callable[..., object], *args: Any) -> None:
    """The call raises MPI's error of this class."""
    try:
        call(*args)
    except MPI.Exception as error:
        equal(error.Get_error_class(), code)
    else:
        raise AssertionError(f"{call} did not raise error {code}")


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
    assert comm.Iprobe(MPI.PROC_NULL, 3, status) is True
    equal(status.source, MPI.PROC_NULL)
    fails(MPI.ERR_RANK, comm.Iprobe, size)
    fails(MPI.ERR_TAG, comm.Iprobe, left, -7)
    comm.Barrier()
    in_bytes = bytearray(64)  # the datatypes may differ, and a refused message keeps its place
    comm.Isend(np.arange(3.0), right, 8).Wait()
    while not comm.Iprobe(left, 8, status):
        pass
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 8, 3)
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
    for length in (1, 1000, 1 << 17):
        replaced = np.full(length, float(rank))
        comm.Sendrecv_replace(replaced, right, 11, left, 11, status)
        equal(replaced, np.full(length, float(left)))
        equal((status.source, status.tag, status.Get_count(MPI.DOUBLE)), (left, 11, length))
    column = np.full((3, 2), float(rank))
    comm.Sendrecv_replace([column, 1, MPI.DOUBLE.Create_vector(3, 1, 2).Commit()], right, 11, left, 11)
    equal(column, [[left, rank]] * 3)
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


def messages_that_do_not_fit() -> None:
    """Each receive takes its message, in the order sent, whether it fits or not."""
    own = comm.Dup()
    short, longer, bytes_of_object = np.zeros(2), np.zeros(10), np.zeros(200, "u1")
    for large in (10, 100_000):
        receives = [own.Irecv(short, left, 7), own.Irecv(longer, left, 7), own.irecv(source=left, tag=7)]
        receives += [own.Irecv(short, left, 7), own.Irecv(bytes_of_object, left, 7), own.irecv(source=left, tag=7)]
        own.Barrier()
        sent: list[object] = [np.arange(large) + 0.5, np.array([200.0, 201]), {"first": large}]
        sent += ["x" * 20, [1, 2], np.array([5.0])]
        for each in sent:
            if isinstance(each, np.ndarray):
                own.Isend(each, right, 7).Wait()
            else:
                own.send(each, right, 7)
        fails(MPI.ERR_TRUNCATE, receives[0].Wait)
        fails(MPI.ERR_TRUNCATE, receives[3].wait, status)
        receives[1].Wait(status)
        equal([*longer[:2], status.count], [200, 201, 16])
        equal(receives[2].wait(), {"first": large})
        receives[4].Wait()
        equal(pickle.loads(bytes_of_object), [1, 2])
        with pytest.raises(pickle.UnpicklingError):  # bytes that are no pickle
            receives[5].wait()
    own.Barrier()
    several = [own.Irecv(np.zeros(length), left, length) for length in (3, 1, 2)]
    statuses = [MPI.Status() for _ in several]
    for tag in (3, 1, 2):
        own.Isend(np.zeros(2), right, tag).Wait()
    fails(MPI.ERR_IN_STATUS, MPI.Request.Waitall, several, statuses)
    equal([each.error for each in statuses], [MPI.SUCCESS, MPI.ERR_TRUNCATE, MPI.SUCCESS])
    equal([each.tag for each in (statuses[0], statuses[2])], [3, 2])
    request = own.Irecv(np.zeros(1), left, 4)
    own.Isend(np.zeros(2), right, 4).Wait()
    own.Barrier()
    while True:
        try:
            assert not request.Get_status(status)
        except MPI.Exception:
            break
    fails(MPI.ERR_TRUNCATE, request.Wait)
    own.Free()


def messages_are_matched_once() -> None:
    """Several threads look for the same messages, some of which are long and arrive meanwhile."""
    own, count = comm.Dup(), 40
    found: list[object] = []

    def look() -> None:
        while len(found) < count:
            message = own.improbe(left, 3, MPI.Status())
            if message is not None:
                found.append(message.recv())

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    sending = [own.isend((i, "x" * (i % 2 * 100_000)), right, 3) for i in range(count)]
    for thread in threads:
        thread.join()
    equal(sorted(each[0] for each in found), range(count))  # type: ignore[index]
    MPI.Request.waitall(sending)
    own.send("matched", right, 4)
    own.send("not matched", right, 4)
    message = own.mprobe(MPI.ANY_SOURCE, 4, status)
    equal((status.source, status.tag), (left, 4))
    equal(own.recv(source=left, tag=4), "not matched")
    equal(message.recv(), "matched")
    own.Free()


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
