"""The outcome of a function on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rankwise.contract.errors import PeerLostError, UnsupportedError, traceback_text
from rankwise.group.group import Group

T = TypeVar("T")
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A value, or a description of the rank's failure with its traceback.

    follows: this rank failed only because another rank did.
    """

    value: T | None = None
    failure: str = ""
    follows: bool = False


class RanksFailed(Exception):
    """A function failed on some ranks.

    Attributes:
        failures: {rank: the failure with its traceback}.
    """

    def __init__(self, outcomes: Sequence[Outcome[Any]]) -> None:
        self.failures = {rank: outcome.failure for rank, outcome in enumerate(outcomes) if outcome.failure}
        first = [rank for rank in self.failures if not outcomes[rank].follows] or list(self.failures)
        lines = [f"{len(self.failures)} of {len(outcomes)} ranks failed"]
        for rank, failure in self.failures.items():
            shown = failure if rank in first else failure.strip().splitlines()[-1]
            lines.append(f"--- rank {rank}: {shown.rstrip()}")
        super().__init__("\n".join(lines))


def run_on(group: Group, fn: Callable[..., T], args: Args, kwargs: Kwargs) -> Outcome[T]:
    """Run `fn(group, *args, **kwargs)`. If it raises, the group is aborted, so that the other ranks do not wait."""
    try:
        return Outcome(value=fn(group, *args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - run_ranks raises every error
        with suppress(UnsupportedError):
            group.comm.abort(f"it raised {type(error).__name__}")
        return failed(error)


def failed(error: BaseException) -> Outcome[Any]:
    return Outcome(failure=traceback_text(error, error.__traceback__), follows=isinstance(error, PeerLostError))


def values(outcomes: Sequence[Outcome[T]]) -> list[T]:
    """The function's return values, by rank. Raises RanksFailed if it failed on any rank."""
    if any(outcome.failure for outcome in outcomes):
        raise RanksFailed(outcomes)
    return [outcome.value for outcome in outcomes]  # type: ignore[misc]  # none of them failed
