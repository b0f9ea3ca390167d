"""Failures as values: to JSON and back, to an error and back, with the numbers of another group, and as text."""

from __future__ import annotations

import pytest

from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError, error_of
from rankwise.contract.failure import AtRank, Failure, differences, failure_behind, text
from rankwise.contract.failure_kinds import ERROR, LOST, TIMEOUT

ERRORS = [
    PeerLostError("lost", rank=2, how="was killed", operation="barrier", sequence=7, host="vm", pid=12),
    MismatchError(
        "differ",
        calls={0: "gather(count=3, root=0) at a.py:1", 1: "gather(count=2, root=0)"},
        sequence=3,
        sites={0: "a.py:1"},
        different=(1,),
    ),
    CollectiveTimeout(
        "late", limit=2.5, missing=(1,), states={0: "in x #1", 1: "outside"}, operation="x", sequence=1,
        stacks={1: "  File a.py"},
    ),
    RankwiseError("gloo failed"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_as_json(error: RankwiseError) -> None:
    failure = Failure.from_json(error.failure.to_json())
    assert failure == error.failure
    again = error_of(failure)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("error", ERRORS[:3], ids=lambda error: type(error).__name__)
def test_a_failure_is_found_behind_other_errors(error: RankwiseError) -> None:
    try:
        try:
            raise error
        except RankwiseError:
            raise KeyError("x") from None
    except KeyError as other:
        other.__cause__ = None
        wrapped = RuntimeError("PeerLostError")
        wrapped.__cause__ = other
    assert failure_behind(wrapped) == error.failure


def test_nothing_is_found_where_no_group_failed() -> None:
    circle = ValueError("PeerLostError: rank 1 was lost")
    circle.__cause__ = KeyError("x")
    circle.__cause__.__cause__ = circle
    assert failure_behind(circle) is None
    assert failure_behind(RankwiseError("rank 1 was lost")) is None
    assert failure_behind(None) is None


def test_ranks_are_renumbered_in_fields_and_text() -> None:
    late = ERRORS[2].failure.renumbered(range(4, 8)).found_in("all_reduce", 9)
    assert (late.to_blame, set(late.ranks)) == ((5,), {4, 5})
    assert late.message == (
        "rank 5 did not come to all_reduce #9 within the timeout of 2.5 s\n  rank 4: in x #1\n  rank 5: outside\n"
        "  Python stack of rank 5, innermost last:\n    File a.py"
    )
    differing = ERRORS[1].failure.renumbered(range(4, 8)).found_in("all_reduce", 9)
    assert differing.message == (
        "the ranks called different operations (operation #9)\n  rank 4: gather(count=3, root=0) at a.py:1\n"
        "  rank 5: gather(count=2, root=0)   <-- other count"
    )
    lost = ERRORS[0].failure.renumbered(range(4, 8)).found_in("all_reduce", 9)
    assert lost.message == "rank 6 (pid 12 on vm) was lost in all_reduce #9: was killed"


def test_texts_of_what_is_not_known() -> None:
    assert text(Failure(LOST, "", to_blame=())) == "a rank was lost: it is not known how"
    assert (
        text(Failure(TIMEOUT, "", operation="init", limit=2)) == "a rank did not come to init within the timeout of 2 s"
    )
    assert text(Failure(ERROR, "bad")) == "bad"


def test_a_summary_is_one_line() -> None:
    assert ERRORS[1].failure.summary == (
        "differ: rank 0 gather(count=3, root=0) at a.py:1, rank 1 gather(count=2, root=0)"
    )
    assert Failure(ERROR, "bad\nworse").summary == "bad"


@pytest.mark.parametrize(
    ("calls", "different"),
    [
        (["a(count=1, op=sum)", "a(count=1, op=sum)"], {}),
        (["a(count=1, op=sum)", "a(count=2, op=max)", "a(count=1, op=sum)"], {1: "count, op"}),
        (["a(count=1)", "b(count=1)", "b(count=1)"], {0: "operation"}),
        (["scan: a(count=1)", "exscan: a(count=1)"], {1: "operation"}),
        (["a(count=4)", "a(count=4, shape=(2, 2))"], {1: "shape"}),
        (["a(counts=[1, 2], dtype=int8)", "a(counts=[1, 3], dtype=int8)"], {1: "counts"}),
        ([], {}),
    ],
)
def test_differences_between_calls(calls: list[str], different: dict[int, str]) -> None:
    assert differences(dict(enumerate(calls))) == different


def test_one_rank_and_its_site() -> None:
    assert AtRank("barrier()", "a.py:3").text == "barrier() at a.py:3"
    assert AtRank("barrier()").text == "barrier()"
