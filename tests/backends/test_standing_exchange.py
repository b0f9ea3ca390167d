"""StandingExchange, whose receives are started ahead, on a double of gloo's transport."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.backends.gloo.standing import StandingExchange

sys.path.insert(0, str(Path(__file__).parent))
from gloo_in_threads import Queues, QueueTransport

SIZE, TURNS = 24, 5


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def block(rank: int, turn: int) -> np.ndarray:
    return np.full(SIZE, 32 * turn + rank, np.uint8)


@pytest.mark.parametrize("n", [2, 3, 16, 17, 21])
def test_each_exchange_gathers_the_blocks_of_its_own_turn(n: int) -> None:
    queues = Queues()
    done = [threading.Semaphore(0) for _ in range(TURNS)]

    def rank(number: int) -> None:
        transport: Any = QueueTransport(queues, number, n)
        mine, everybody = np.empty(SIZE, np.uint8), np.empty((n, SIZE), np.uint8)
        exchange = StandingExchange(transport, address(mine), address(everybody), SIZE)
        for turn in range(TURNS):
            if number == turn and turn:  # this rank is one exchange behind; the others cannot go further without it
                for _ in range(n - 1):
                    done[turn - 1].acquire(timeout=30)
            mine[:] = block(number, turn)
            exchange()
            assert (everybody == [block(other, turn) for other in range(n)]).all()
            done[turn].release()

    with ThreadPoolExecutor(n) as pool:
        for each in [pool.submit(rank, number) for number in range(n)]:
            each.result(60)


class Recorded(QueueTransport):
    """Records what is started."""

    def __init__(self, queues: Queues, rank: int, world_size: int) -> None:
        super().__init__(queues, rank, world_size)
        self.events: list[str] = []

    def send(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        self.events.append("send")
        return super().send(ptr, size, peer, tag)

    def recv(self, ptr: int, size: int, peer: int, tag: int) -> Any:
        self.events.append("recv")
        return super().recv(ptr, size, peer, tag)


@pytest.mark.parametrize(
    ("n", "messages"), [(3, 2), (17, 6)]
)  # on 17 ranks: 5 rounds, at most one of them in two parts
def test_an_exchange_begins_to_send_with_all_its_receives_started(n: int, messages: int) -> None:
    queues = Queues()

    def rank(number: int) -> None:
        transport: Any = Recorded(queues, number, n)
        mine, everybody = np.zeros(SIZE, np.uint8), np.empty((n, SIZE), np.uint8)
        exchange = StandingExchange(transport, address(mine), address(everybody), SIZE)
        exchange()
        transport.events.clear()
        exchange()
        assert transport.events[0] == "send"
        assert transport.events.count("recv") <= messages

    with ThreadPoolExecutor(n) as pool:
        for each in [pool.submit(rank, number) for number in range(n)]:
            each.result(60)
