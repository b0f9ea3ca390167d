"""Objects that are sent by reference, which only ranks of one process can do."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.group import references
from rankwise.group.object_block import decode, encode
from rankwise.testing import run_ranks


class Anything:
    """No plain data; it can be referenced weakly."""


def test_the_receiver_gets_the_object_itself() -> None:
    def rank(group: rw.Group) -> list[Any]:
        objects = [np.arange(1000.0), {"a": [1]}, Anything(), lambda: group.rank]
        if group.rank == 0:
            for obj in objects:
                group.send_object(obj, 1, by_reference=True)
            sending = group.isend_object(objects[0], 1, tag=3, by_reference=True)
            part = group.split(0)
            part.send_object(objects[2], 1, by_reference=True)  # in a group that was made of this one
            sending.wait()
            return objects
        received = [group.recv_object(0) for _ in objects]
        assert group.irecv_object(0, tag=3).wait() is received[0]
        assert group.split(0).recv_object(0) is received[2]
        return received

    for sent, received in zip(*run_ranks(rank, 2, backend="threads"), strict=True):
        assert sent is received


def test_what_nobody_receives_is_released_with_the_groups() -> None:
    def rank(group: rw.Group) -> weakref.ref[Anything]:
        obj = Anything()
        group.send_object(obj, 1 - group.rank, by_reference=True)
        return weakref.ref(obj)

    found = run_ranks(rank, 2, backend="threads")
    gc.collect()
    assert [reference() for reference in found] == [None, None]


def test_what_is_not_sent_is_released_at_once() -> None:
    def rank(group: rw.Group) -> None:
        objects: list[weakref.ref[Anything]] = []

        def send(to: int | None, tag: int = 0) -> None:
            obj = Anything()
            objects.append(weakref.ref(obj))
            group.send_object(obj, to, tag, by_reference=True)

        def isend(to: int | None, tag: int = 0) -> None:
            obj = Anything()
            objects.append(weakref.ref(obj))
            group.isend_object(obj, to, tag, by_reference=True).wait()

        for way in (send, isend):
            way(None)
            with pytest.raises(ValueError, match="tag=-1"):
                way(1 - group.rank, -1)
        group.barrier()
        if group.rank == 0:
            group.abort("sends must fail")
        with pytest.raises(rw.PeerLostError):
            group.barrier()
        for way in (send, isend):
            with pytest.raises(rw.PeerLostError):
                way(1 - group.rank)
        gc.collect()
        assert [reference() for reference in objects] == [None] * 6

    run_ranks(rank, 2, backend="threads")


def test_other_processes_cannot_send_or_receive_it() -> None:
    with (
        rw.init("solo") as group,
        pytest.raises(rw.UnsupportedError, match="sending by reference is not supported by the solo backend"),
    ):
        group.isend_object([1], 0, by_reference=True)
    kept = references.References()
    sending = kept.add(Anything())
    sending.sent()
    stream, buffers = encode(sending.reference, False)
    assert isinstance(decode(stream, buffers, False, 1), Anything)
    with pytest.raises(ValueError, match="rank 1 sent an invalid object"):  # a second time
        decode(stream, buffers, False, 1)
    del kept
    gc.collect()
    with pytest.raises(ValueError, match=" the object was sent by reference, in another process"):
        decode(stream, buffers, False, 1)
