"""The errors keep their fields, also through pickle, by which a spawned rank's error reaches the caller."""

import pickle

import pytest

from rankwise.contract import errors

EXAMPLES = [
    errors.PeerLostError("lost", rank=2, how="was killed by SIGKILL", operation="barrier", sequence=7),
    errors.MismatchError("differ", calls={0: "barrier()", 1: "split()"}, sequence=3),
    errors.CollectiveTimeout("late", limit=2.5, missing=(1,), states={1: "has not joined"}, operation="x", sequence=1),
    errors.UnsupportedError("scan", "gloo", why="gloo has none", remedy="use shm"),
    errors.BackendUnavailable("mpi", "mpi4py is not installed", remedy="pip install rankwise[mpi]"),
    errors.ClosedError("closed"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_pickled_errors_keep_text_and_fields(error: errors.RankwiseError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_families() -> None:
    assert issubclass(errors.CollectiveTimeout, TimeoutError)
    assert issubclass(errors.BackendUnavailable, ImportError)
    assert all(isinstance(e, errors.RankwiseError) for e in EXAMPLES)


@pytest.mark.parametrize(
    ("calls", "hinted"),
    [
        (("all_gather(count=3, dtype=float32) at a.py:1", "all_gather(count=2, dtype=float32)"), "all_gather_v"),
        (("gather(count=3, dtype=int8, root=0)", "gather(count=2, dtype=int8, root=0)"), "gather_v"),
        (("all_gather(count=3, dtype=float32)", "all_gather(count=3, dtype=float64)"), ""),
        (("gather(count=3, dtype=int8, root=0)", "gather(count=3, dtype=int8, root=1)"), ""),
        (("gather(count=3, dtype=int8, root=0)", "gather(count=2, dtype=int8, root=1)"), ""),
        (("all_gather(count=3, dtype=float32)", "gather(count=3, dtype=float32)"), ""),
        (("all_reduce(count=3, dtype=int8, op=sum)", "all_reduce(count=2, dtype=int8, op=sum)"), ""),
    ],
)
def test_gathering_arrays_of_different_lengths_points_to_the_vector_collective(
    calls: tuple[str, ...], hinted: str
) -> None:
    hint = f"\n{hinted} gathers arrays whose first axes differ in length" if hinted else ""
    assert str(errors.MismatchError("differ", calls=dict(enumerate(calls)))) == "differ" + hint
