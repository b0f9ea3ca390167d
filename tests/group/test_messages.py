"""Arrays of unknown size, and Python objects, as messages."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import rankwise as rw
from rankwise.arrays import dtypes
from rankwise.contract.message import IncomingMessage
from rankwise.group.group import Group
from rankwise.testing import run_ranks

THING = {"text": "x", "large": np.arange(2000.0), "odd": np.arange(4097, dtype=np.uint8), ("t", 1): {1.5, None}}


def check(got: Any) -> None:
    assert got["text"] == "x"
    assert got["large"].tolist() == list(range(2000))
    assert got["large"].flags.aligned
    assert got["odd"].size == 4097
    assert got["t", 1] == {1.5, None}


@pytest.mark.parametrize("backend", ["threads", "shm", "gloo"])
def test_objects_between_all_ranks(backend: str) -> None:
    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        works = [group.isend_object([me, THING], to, 5) for to in range(n)]
        seen = set()
        for _ in range(n):
            work = group.irecv_object(rw.ANY, 5)
            source, thing = work.wait()
            check(thing)
            assert (work.source, work.tag) == (source, 5)
            seen.add(source)
        assert seen == set(range(n))
        rw.wait_all(works)
        if me == 0:
            group.send_object(SimpleNamespace(a=1), 1, allow_pickle=True)
            group.send_object(SimpleNamespace(a=2), 1, allow_pickle=True)
            with pytest.raises(TypeError, match=r"^obj: types.SimpleNamespace is not plain data"):
                group.send_object(SimpleNamespace(a=3), 1)
        elif me == 1:
            assert group.recv_object(0, allow_pickle=True) == SimpleNamespace(a=1)
            with pytest.raises(TypeError, match=r"^rank 0 sent an object that is not plain data \("):
                group.recv_object(0)

    run_ranks(ranks, 3, backend=backend)


def test_objects_and_arrays_keep_their_order() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            for i in range(30):
                group.isend_object({"number": i, "array": np.full(1000 * (i % 3), i)}, 1, 3)
                group.isend(np.full(i, i), 1, 3)
        else:
            for i in range(30):
                found = group.recv_object(0, 3) if i % 2 else group.recv_any(tag=rw.ANY).data
                assert found["number"] == i
                assert (found["array"] == i).all()
                assert group.recv((i,), 0, 3, dtype=int).tolist() == [i] * i

    run_ranks(ranks, 2)


def test_pending_receives_of_objects_are_matched_in_order() -> None:
    def ranks(group: Group) -> None:
        works = [group.irecv_object(0), group.irecv_object(0), group.irecv_object(0, tag=rw.ANY)]
        other = group.irecv_object(0, tag=9)
        for tag, text in ((9, "first with 9"), (0, "first"), (0, "second"), (9, "second with 9")):
            group.send_object(text, 0, tag)
        # A receive with any tag was posted before `other`.
        assert works[2].wait() == "first with 9"
        assert other.wait() == "second with 9"
        assert works[1].wait() == "second"
        assert works[0].done()
        assert works[0].wait() == "first"

    run_ranks(ranks, 1)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_each_message_goes_to_one_of_several_threads(backend: str) -> None:
    """Threads with recv_any, recv_object and recv on the same messages: none is lost, none comes twice."""
    each = 150

    def ranks(group: Group) -> None:
        n, me = group.world_size, group.rank
        if me:
            for i in range(each):
                group.isend(np.full(1 + i % 7, me * each + i), 0, 1)
                group.isend_object(me * each + i, 0, 2)
            group.barrier()
            return
        found: list[tuple[str, int]] = []
        errors: list[Exception] = []
        share = each * (n - 1) // 3

        def arrays() -> None:
            for _ in range(share):
                message = group.recv_any(tag=1)
                assert message.data.size == 1 + message.data[0] % each % 7
                assert (message.data == message.data[0]).all()
                assert message.data[0] // each == message.source
                found.append(("array", int(message.data[0])))

        def objects() -> None:
            for _ in range(share):
                message = group.recv_any(tag=2)
                assert message.data // each == message.source
                found.append(("object", message.data))

        def run(function: Any) -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)

        threads = [threading.Thread(target=run, args=(function,)) for function in (arrays, objects) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert sorted(found) == [(kind, i) for kind in ("array", "object") for i in range(each, n * each)]
        group.barrier()

    run_ranks(ranks, 3, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm", "gloo"])
def test_a_message_without_a_numpy_dtype_is_kept(backend: str) -> None:
    """bfloat16 where the package ml_dtypes is missing."""
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        if group.rank == 0:
            for size in (3, 1 << 20):
                for number in (1, 2):
                    group.send(torch.full((size,), number, dtype=torch.bfloat16), 1, number)
            return
        dtypes._ml_dtype.cache_clear()
        with patch.dict(sys.modules, {"ml_dtypes": None}):
            for size in (3, 1 << 20):
                for tag in (1, rw.ANY):
                    with pytest.raises(ImportError, match="NumPy arrays of bfloat16 need the package ml_dtypes"):
                        group.recv_any(0, tag)
                assert group.probe(0, tag=rw.ANY).tag == 1
                for number in (1, 2):
                    data = group.recv_any(0, tag=rw.ANY, dtype=torch.bfloat16).data
                    assert data.tolist() == [number] * size

    run_ranks(ranks, 2, backend=backend)


def test_recv_any() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        group.isend(np.ones((2, 3), np.int16), 0, 4)
        message = group.recv_any(tag=rw.ANY)
        assert (message.data.tolist(), message.data.dtype, message.source, message.tag) == ([1] * 6, np.int16, 0, 4)
        group.isend(np.ones(2, np.float32), 0)
        with pytest.raises(
            rw.MismatchError,
            match=r"^recv_any: .* rank 0 with tag 0 is an array of float32, expected an array of int64$",
        ):
            group.recv_any(tag=rw.ANY, dtype=int)
        tensor = group.recv_any(0, 0, dtype=torch.float32)
        assert isinstance(tensor.data, torch.Tensor)
        group.isend(np.arange(16, dtype=np.uint8), 0)
        with pytest.raises(rw.MismatchError):
            group.recv_object(0)
        tensor = group.recv_any(0, tag=rw.ANY, dtype=torch.uint8)
        assert isinstance(tensor.data, torch.Tensor)
        assert tensor.data.tolist() == list(range(16))
        nothing = group.recv_any(None)
        assert (nothing.data.size, nothing.source, nothing.tag) == (0, None, None)
        begin = time.monotonic()
        with pytest.raises(rw.CollectiveTimeout) as caught:
            group.recv_any(tag=7, timeout=0.05)
        assert (caught.value.operation, caught.value.limit) == ("recv", 0.05)
        assert caught.value.states[0].startswith("in recv from any rank, tag 7")
        assert time.monotonic() - begin >= 0.05
        group.send(3, 0, 7)
        assert group.recv_any(tag=7).data.tolist() == [3]  # not taken by the cancelled receive

    run_ranks(ranks, 1)


def test_the_wrong_kind_of_message_is_not_lost() -> None:
    def ranks(group: Group) -> None:
        for x in (np.arange(3), np.arange(64, dtype=np.uint8)):
            group.isend(x, 0)
            what = f"an array of {x.size} x {x.dtype}, not an object"
            with pytest.raises(rw.MismatchError, match=rf"^recv_object: .* is {what}; receive it with"):
                group.recv_object(0)
            assert group.probe(0, 0) == rw.Message(0, 0, x.size, rw.DType.I64 if x.size == 3 else rw.DType.U8)
            assert group.recv_any(0, tag=rw.ANY).data.tolist() == x.tolist()
        group.send_object(THING, 0)
        with pytest.raises(rw.MismatchError, match=r"^recv_any: .* is an object, expected an array of uint8$"):
            group.recv_any(tag=rw.ANY, dtype=np.uint8)
        check(group.recv_any(tag=rw.ANY).data)
        group.send_object(THING, 0)
        with pytest.raises(rw.MismatchError, match=r"the message is an object with tag 0, the receive expects"):
            group.recv((3,), 0)
        check(group.recv_object(0))

    run_ranks(ranks, 1)


RECEIVES: dict[str, Callable[[Group, np.ndarray[Any, Any]], object]] = {
    "recv": lambda group, x: group.recv(x, 0),
    "recv into a new array": lambda group, x: x.__setitem__(..., group.recv(x.shape, 0, dtype=x.dtype)),
    "recv into a strided array": lambda group, x: x.__setitem__(..., group.recv(np.zeros((16, 2), np.uint8)[:, 0], 0)),
    "irecv": lambda group, x: group.irecv(x, 0).wait(),
    "irecv from any rank": lambda group, x: group.irecv(x, rw.ANY, rw.ANY).wait(),
    "sendrecv": lambda group, x: group.sendrecv(x, None, 0, out=x),
    "batch": lambda group, x: group.batch([], [(x, 0)]),
    "recv_any": lambda group, x: x.__setitem__(..., group.recv_any(0, tag=rw.ANY).data),
}


@pytest.mark.parametrize("backend", ["threads", "shm", "gloo"])
def test_messages_that_were_refused_come_first_in_every_receive(backend: str) -> None:
    def ranks(group: Group) -> None:
        x = np.zeros(16, np.uint8)
        for receive in RECEIVES.values():
            if group.rank == 0:
                for i in range(3):
                    group.send(np.full(16, i, np.uint8), 1)
            else:
                for i in range(3):
                    with pytest.raises(rw.MismatchError, match=r"not an object"):
                        group.recv_object(0)
                    x[:] = 9
                    receive(group, x)
                    assert (x == i).all()
        if group.rank == 1:
            assert group.probe(tag=rw.ANY) is None

    run_ranks(ranks, 2, backend=backend)


def test_several_refused_messages_keep_the_order_in_which_they_were_sent() -> None:
    def ranks(group: Group) -> None:
        for i in range(5):
            group.isend(np.full(16, i, np.uint8), 0)
        works = [group.irecv_object(0) for _ in range(4)]
        assert works[0].done()
        for work in reversed(works):
            with pytest.raises(rw.MismatchError):
                work.wait()
            assert work.source is None
        assert [group.recv((16,), 0, dtype=np.uint8)[0] for _ in range(5)] == [0, 1, 2, 3, 4]

    run_ranks(ranks, 1)


def test_a_refused_message_stays_for_the_receive_that_fits() -> None:
    def ranks(group: Group) -> None:
        for i in range(2):
            group.isend(np.full(16, i, np.uint8), 0)
        with pytest.raises(rw.MismatchError):
            group.recv_object(0)
        wrong = r"^recv from rank 0: the message is 16 x uint8 with tag 0, the receive expects 8 x float64 with tag 0$"
        with pytest.raises(rw.MismatchError, match=wrong):
            group.recv((8,), 0)
        work = group.irecv((16,), rw.ANY, rw.ANY, dtype=np.uint8)
        assert work.wait()[0] == 0
        assert (work.source, work.tag) == (0, 0)
        assert group.recv((16,), 0, dtype=np.uint8)[0] == 1

    run_ranks(ranks, 1)


class SlowlyArriving:
    """A communicator on which incoming messages are complete only once `complete` is set."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.complete = comm, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        incoming, complete, usual = self.comm.start_arrived(src, tag), self.complete, self.comm
        if incoming is None:
            return None
        inner = incoming.work

        class Late(rw.Work[None]):
            def wait(self, timeout: float | None = None) -> None:
                if not complete.wait(usual.timeout if timeout is None else timeout):
                    raise rw.CollectiveTimeout("it has not arrived yet", limit=timeout or 0.0, operation="recv")
                inner.wait(timeout)

            def done(self) -> bool:
                return complete.is_set() and inner.done()

        return incoming._replace(work=Late())


def test_a_message_whose_receive_ends_while_it_arrives_is_not_lost() -> None:
    pytest.importorskip("torch")  # for gloo

    def ranks(group: Group) -> None:
        if group.rank == 0:
            for thing in (THING, "next"):
                group.send_object(thing, 1, tag=1)
        else:
            slow = SlowlyArriving(group.comm)
            assert group._queue is not None
            group._queue.comm = slow
            while group.probe(0, 1) is None:
                time.sleep(0.001)
            for src, receive in ((0, group.recv_object), (rw.ANY, group.recv_any)):
                with pytest.raises(rw.CollectiveTimeout):
                    receive(src, rw.ANY, timeout=0.05)
            message = group.probe(0, 1)
            assert message is not None
            with group.timeout_of(0.05), pytest.raises(rw.CollectiveTimeout):
                group.recv((message.count,), 0, 1, dtype=np.uint8)
            slow.complete.set()
            check(group.recv_object(0, tag=1))
            assert group.recv_any(tag=rw.ANY) == ("next", 0, 1)
            assert group.probe(0, rw.ANY) is None
        group.barrier()

    run_ranks(ranks, 2, backend="gloo")


def test_the_null_rank() -> None:
    def ranks(group: Group) -> None:
        group.send_object({1: 2}, None)
        assert group.isend_object(1, None).done()
        assert group.recv_object(None) is None
        work = group.irecv_object(None)
        assert work.done()
        assert (work.wait(), work.source, work.tag) == (None, None, None)
        assert group.probe(tag=rw.ANY, timeout=0.02) is None

    run_ranks(ranks, 1)


def test_a_lost_rank_ends_the_wait_for_its_message() -> None:
    def ranks(group: Group) -> None:
        if group.rank == 0:
            with pytest.raises(rw.PeerLostError):
                group.recv_object(1)
        else:
            group.abort("no object will come")

    run_ranks(ranks, 2)


UNTIL_IT_LEAVES: dict[str, Callable[[Group, int], object]] = {
    "recv_any": lambda group, src: group.recv_any(src, 0),
    "recv_any of one dtype": lambda group, src: group.recv_any(src, dtype=int, timeout=60),
    "irecv_object": lambda group, src: group.irecv_object(src).wait(),
    "probe": lambda group, src: group.probe(src, 0, timeout=60),
}


@pytest.mark.parametrize(("backend", "src"), [("threads", 1), ("threads", rw.ANY), ("shm", 1)])
def test_a_rank_that_leaves_ends_the_wait_for_its_message(backend: str, src: int) -> None:
    def ranks(group: Group) -> None:
        for receive in UNTIL_IT_LEAVES.values():
            with group.dup() as part:
                if part.rank == 1:
                    part.send_object("before it leaves", 0, 5)
                    continue
                with pytest.raises(rw.PeerLostError) as caught:
                    receive(part, src)
                lost = caught.value
                assert (lost.rank, lost.how, lost.operation) == (1, "left the group", "recv")

    run_ranks(ranks, 2, backend=backend)


def test_what_a_rank_sent_before_it_left_is_received() -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        if part.rank == 1:
            for i in range(3):
                part.send_object(i, 0)
        if part.rank != 0:
            part.close()
        group.barrier()
        if part.rank == 0:
            assert set(part.comm.left()) == {1, 2}
            assert part.probe(2, tag=rw.ANY) is None, "without a timeout, only what has arrived"
            assert [part.recv_any().data, part.recv_object(1), part.recv_object(1)] == [0, 1, 2]
            with pytest.raises(rw.PeerLostError):
                part.recv_any()
            part.close()

    run_ranks(ranks, 3, backend="threads")


def test_closing_ends_a_pending_receive_without_a_log(caplog: pytest.LogCaptureFixture) -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        work = part.irecv_object(rw.ANY)
        part.close()
        with pytest.raises(rw.ClosedError):
            work.wait()

    run_ranks(ranks, 2, backend="threads")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_closing_leaves_nothing_to_a_rank_that_is_stopped() -> None:
    """What a rank has sent and the other has not begun to receive is cancelled when it closes its end."""

    def ranks(group: Group) -> None:
        others = group.all_gather_object(os.getpid())
        part, peer = group.dup(), 1 - group.rank
        found, later = np.zeros(1 << 17), np.zeros(1 << 17)
        receiving = part.irecv(found, peer)
        group.barrier()
        if group.rank:
            with pytest.raises(rw.PeerLostError):
                receiving.wait()
            with pytest.raises(rw.PeerLostError):
                part.recv(later, peer)
            assert not found.any()
            assert not later.any()
            return
        time.sleep(0.1)  # by now the other rank waits
        os.kill(others[1], signal.SIGSTOP)
        while " T " not in Path(f"/proc/{others[1]}/stat").read_text():
            time.sleep(0.001)
        sent = [np.full(1 << 17, 7.0), np.full(1 << 17, 8.0)]
        for each in sent:
            part.isend(each, peer)
        part.close(0)
        for each in sent:
            each[:] = -1
        os.kill(others[1], signal.SIGCONT)

    run_ranks(ranks, 2, backend="shm")


def test_a_backend_without_any_source_raises() -> None:
    pytest.importorskip("torch")  # for gloo

    def ranks(group: Group) -> None:
        group.comm.any_source = False
        for receive in (group.recv_any, group.recv_object):
            with pytest.raises(rw.UnsupportedError, match=r"^recv of any length is not supported by the"):
                receive(0)

    run_ranks(ranks, 1, backend="gloo")
