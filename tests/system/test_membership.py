"""Membership: what ranks report about each other, and what their launcher reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from rankwise.system.membership import DONE, LEFT_OUT, MEMBER, Membership
from rankwise.system.settings import Settings


@pytest.fixture
def table() -> Iterator[Membership]:
    with closing(Membership.create(3)) as table:
        yield table


def rank(fd: int | None) -> Membership:
    return Membership.of(Settings({"RANKWISE_MEMBERSHIP_FD": str(fd)}))


def test_the_launcher_reads_what_was_said_last(table: Membership) -> None:
    rank(table.fd).note([1, 2], LEFT_OUT)
    assert [table.of_rank(number) for number in range(3)] == [MEMBER, LEFT_OUT, LEFT_OUT]
    rank(table.fd).note(range(3), MEMBER)
    rank(table.fd).note([0], DONE)
    assert [table.of_rank(number) for number in range(3)] == [DONE, MEMBER, MEMBER]


def test_a_process_of_another_launcher_says_nothing(table: Membership) -> None:
    Membership.of(Settings({})).note([0], LEFT_OUT)
    rank(0).note([0], LEFT_OUT)  # the number of the descriptor was inherited, but not the memory
    assert table.of_rank(0) == MEMBER
    assert Membership().of_rank(0) == MEMBER
