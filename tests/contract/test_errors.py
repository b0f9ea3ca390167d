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
