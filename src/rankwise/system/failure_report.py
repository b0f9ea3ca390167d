"""What a rank reports to its launcher about its end: the last failure of a group, and its uncaught exception.

The launcher shares one piece of memory with all its ranks, in which each rank has a place. A rank writes there when its
interpreter exits; a process that ends by os._exit or by a signal reports nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from rankwise.contract import errors
from rankwise.contract.failure import AtRank, Failure, failure_behind
from rankwise.contract.failure_kinds import ERROR
from rankwise.system.settings import failures_memory

REPORT_BYTES = 1 << 20  # bytes of a rank's report
LONGEST = 300  # characters of an exception's name and text
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Report(NamedTuple):
    """uncaught: the exception that ended the program, or the failure of a group from which that followed.

    latest: the last failure of a group, after which the program may have gone on.
    """

    uncaught: Failure | None = None
    latest: Failure | None = None


def read(fd: int, rank: int) -> Report:
    """What a rank has reported. fd: the memory, in which a rank that was killed may have left the half of a report."""
    line = os.pread(fd, REPORT_BYTES, rank * REPORT_BYTES).partition(b"\0")[
        0
    ]  # memory that nobody has written to holds zeros
    if not line:
        return Report()
    import json  # which only failures need

    try:  # a text may have been cut off in the middle of a character
        uncaught, latest = json.loads(line.decode(errors="replace"))
        return Report(*(None if data is None else _checked(Failure.from_json(data)) for data in (uncaught, latest)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Report()


def _checked(failure: Failure) -> Failure:
    """The same. Raises TypeError if a field is not of its type."""
    own = Failure("")
    for name, value in vars(failure).items():
        if type(value) is not type(getattr(own, name)) and not (name == "limit" and type(value) is int):
            raise TypeError(f"{name}: {value!r}")
    texts = [part for at in failure.ranks.values() for part in (at.call, at.site, at.stack)]
    if not all(isinstance(part, str) for part in texts) or not all(isinstance(rank, int) for rank in failure.to_blame):
        raise TypeError("a text or a rank is something else")
    return failure


def forget(fd: int, rank: int) -> None:
    """Remove a rank's report, because another process takes its place."""
    os.pwrite(fd, b"\0", rank * REPORT_BYTES)


@lru_cache(1)
def report_at_exit() -> None:
    """From the first call on: if a launcher reads it, this process writes its report when its interpreter exits."""
    memory = failures_memory()
    if memory is not None:
        atexit.register(_report, *memory, os.getpid())


def _report(fd: int, rank: int, pid: int) -> None:
    if os.getpid() != pid:  # a fork, which is not the rank
        return
    error: BaseException | None = getattr(sys, "last_value", None)  # which Python sets, whatever the excepthook
    uncaught = failure_behind(error) or (None if error is None else _own_error(error, rank))
    line = _line(failures := [uncaught, errors.latest_failure])
    if len(line) > REPORT_BYTES:
        line = _line(
            [failure and replace(failure, message=failure.message[:LONGEST], ranks={}) for failure in failures]
        )
    os.pwrite(fd, line, rank * REPORT_BYTES)


def _line(failures: Iterable[Failure | None]) -> bytes:
    import json

    return json.dumps([failure and failure.to_json() for failure in failures]).encode() + b"\0"


def _own_error(error: BaseException, rank: int) -> Failure:
    """An error of the program itself. Its place is the innermost one outside this package."""
    message = errors.described(error).strip().partition("\n")[0][:LONGEST]
    frames = traceback.extract_tb(error.__traceback__)
    sites = [f"{frame.filename}:{frame.lineno}" for frame in frames if not frame.filename.startswith(PACKAGE)]
    return Failure(ERROR, message, ranks={rank: AtRank(site=sites[-1] if sites else "")})
