"""Records the calls that this process makes to another library. All ranks number what they name alike."""

from collections.abc import Callable, Sequence
from typing import Any

from rankwise._native import Segment

def start(
    segment: Segment,
    rank: int,
    number: int,
    world_size: int,
    operations: Sequence[tuple[str, str, bool, str]],
    reductions: Sequence[str],
    timeout: float,
    abort: bool,
) -> None:
    """Begin to record, and to compare with the other ranks of the segment in a thread of its own.

    number: of the rank in the job. operations: name, as what the trace shows it, whether it is a message, and what its
    root or peer is called ("" if it has none). reductions: their names, the last one for those without a name.
    """

def function(
    function: Callable[..., Any],
    operation: int,
    arguments: Sequence[tuple[int, str] | None] = (),
    convert: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """A method that calls `function` and records the call in the communicator whose number is self._watched.

    arguments: those that are recorded, by their positions after self and their names: the buffer, another one that is
    taken if the first is IN_PLACE, the root or peer, the reduction and the tag. convert: called with self and the
    result, and makes the result.
    """

def add_comm(id: int, name: str, deferred: bool = False) -> int:
    """The number of a new communicator.

    id: the same on all its ranks, or 0 if its calls are not compared. deferred: whether its calls return before
    they are complete.
    """

def remove_comm(index: int) -> None: ...
def calls(comm: int) -> int:
    """How many calls have been made in this communicator."""

def set_objects(in_place: object, reductions: Sequence[tuple[object, int]]) -> None:
    """The object that stands for a buffer that is used in place, and those that name reductions."""

def begin(
    comm: int,
    operation: int,
    root: int = 0,
    reduction: int = 255,
    dtype: int = 255,
    amount: int | None = None,
    site: str = "",
) -> int:
    """Record a call; `end` takes the result. site: the line, by default the program's that makes the call."""

def end(begun: int, failed: bool) -> None: ...
def check() -> None:
    """Compare all calls with those of the other ranks; ends the process if they do not match."""

def failure(segment: Segment) -> str:
    """Why the calls of the segment's ranks ended the job; "" if they did not."""
