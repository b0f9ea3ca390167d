"""Partings: what ranks say of each other, and what their launcher reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from rankwise.contract.partings import DONE, LEFT_OUT, TOGETHER, Partings
from rankwise.contract.settings import Settings


@pytest.fixture
def table() -> Iterator[Partings]:
    with closing(Partings.create(3)) as table:
        yield table


def rank(fd: int | None) -> Partings:
    return Partings.of(Settings({"RANKWISE_PARTINGS_FD": str(fd)}))


def test_the_launcher_reads_what_was_said_last(table: Partings) -> None:
    rank(table.fd).note([1, 2], LEFT_OUT)
    assert [table.of_rank(number) for number in range(3)] == [TOGETHER, LEFT_OUT, LEFT_OUT]
    rank(table.fd).note(range(3), TOGETHER)
    rank(table.fd).note([0], DONE)
    assert [table.of_rank(number) for number in range(3)] == [DONE, TOGETHER, TOGETHER]


def test_a_process_of_another_launcher_says_nothing(table: Partings) -> None:
    Partings.of(Settings({})).note([0], LEFT_OUT)
    rank(0).note([0], LEFT_OUT)  # the number of the descriptor was inherited, but not the memory
    assert table.of_rank(0) == TOGETHER
    assert Partings().of_rank(0) == TOGETHER
