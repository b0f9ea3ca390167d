"""The exception classes of rankwise.

RankwiseError
 +- PeerLostError        a rank of the group died, left while others needed it, or aborted the group
 +- MismatchError        the ranks called different operations, or one with different arguments
 +- CollectiveTimeout    a rank did not come in time (also a TimeoutError)
 +- UnsupportedError     this backend cannot do this operation
 +- BackendUnavailable   a library or device is missing (also an ImportError)
 +- ClosedError          the communicator was closed
 +- TaskError            a task of group.map failed (of rankwise.group.farm)

In a collective, the first three are failures of the group: every rank raises one, and the group stays
failed; the survivors may go on in a new one (`group.shrink`, `group.restore`). Over shared memory, a message that
is late or of another size raises its error on the receiver only, and the group remains usable. A bad
argument raises TypeError or ValueError, on this rank only, before anything is sent.
"""

from __future__ import annotations

from rankwise.contract.failure_kinds import ERROR, LOST, MISMATCH, TIMEOUT
from rankwise.contract.public import public

TYPE_CHECKING = False  # the launcher, which imports this file, needs no dataclasses unless something fails
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from rankwise.contract.failure import Failure


@public
class RankwiseError(Exception):
    """The base class of rankwise's errors.

    Example:
        >>> with group.dup() as part:
        ...     try:
        ...         part.all_reduce(np.ones(2 + part.rank))
        ...     except rw.RankwiseError as error:
        ...         print(type(error).__name__)
        MismatchError
    """

    _kind = ERROR

    @property
    def failure(self) -> Failure:
        """What happened, as a value."""
        from rankwise.contract.failure import Failure  # imports dataclasses, without which the launcher starts sooner

        return Failure.of(kind=self._kind, message=str(self), **self._facts())

    def _facts(self) -> dict[str, Any]:
        """The fields of the failure, but for its kind and message."""
        return {}


@public
class PeerLostError(RankwiseError):
    """A rank of the group died, ended early, left, or aborted the group.

    Attributes:
        rank: the lost rank's number in the group.
        how: how it ended, a phrase: "was killed by SIGKILL", "exited with status 3".
        operation: the operation in which the rank that raises this was; if no rank does, as in `rw.spawn`, the last one
            of the lost rank.
        sequence: the number of that operation in the group.
        host: the lost process's host, if known.
        pid: the lost process's, if known.

    Example:
        >>> error = rw.PeerLostError("rank 1 exited with status 3", rank=1, how="exited with status 3")
        >>> error.rank, error.how
        (1, 'exited with status 3')
    """

    _kind = LOST

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        how: str = "",
        operation: str = "",
        sequence: int = -1,
        host: str = "",
        pid: int = 0,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.how = how
        self.operation = operation
        self.sequence = sequence
        self.host = host
        self.pid = pid
        _note(self)

    def _facts(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "sequence": self.sequence,
            "to_blame": () if self.rank < 0 else (self.rank,),
            "how": self.how,
            "host": self.host,
            "pid": self.pid,
        }


@public
class MismatchError(RankwiseError):
    """The ranks of a group called different operations, or one operation with different arguments.

    Attributes:
        calls: {rank: description}, what each rank called and where, as far as this rank knows.
        sites: {rank: "file:line"}, the call sites of the ranks that were in a call of the group.
        different: the ranks whose call differs from most ranks' call.

    Example:
        >>> with group.dup() as part:
        ...     try:
        ...         part.all_reduce(np.ones(2 + part.rank))
        ...     except rw.MismatchError as error:
        ...         print(sorted(error.calls))
        [0, 1]
    """

    _kind = MISMATCH

    def __init__(
        self,
        message: str,
        *,
        calls: dict[int, str] | None = None,
        sequence: int = -1,
        sites: dict[int, str] | None = None,
        different: tuple[int, ...] = (),
    ) -> None:
        hint = _v_variant(calls or {})
        super().__init__(message if message.endswith(hint) else message + hint)
        self.calls = dict(calls or {})
        self.sequence = sequence
        self.sites = dict(sites or {})
        self.different = tuple(different)
        _note(self)

    def _facts(self) -> dict[str, Any]:
        sites = {rank: self.sites.get(rank, "") for rank in self.calls}
        calls = {rank: call.removesuffix(f" at {sites[rank]}") for rank, call in self.calls.items()}
        ranks = {rank: {"call": call, "site": sites[rank]} for rank, call in calls.items()}
        return {"sequence": self.sequence, "ranks": ranks, "to_blame": self.different}


def _v_variant(calls: dict[int, str]) -> str:
    """A hint to add if the ranks gather arrays that differ in their lengths alone; else ""."""
    import re

    made = {text.partition(")")[0] for text in calls.values() if "count=" in text}  # without call sites
    alike = {re.sub(r"count=\d+", "", text) for text in made}
    operation = alike.pop().partition("(")[0] if len(alike) == 1 and len(made) > 1 else ""
    return f"\n{operation}_v gathers arrays whose first axes differ in length" if operation.endswith("gather") else ""


@public
class CollectiveTimeout(RankwiseError, TimeoutError):
    """A rank did not arrive before the timeout.

    The message contains all of the attributes, and is the same on all ranks that were in the operation.

    Attributes:
        operation: the operation that was late, and `sequence`, its number in the group.
        limit: seconds.
        missing: the ranks that did not arrive.
        states: {rank: description}, where each rank is.
        stacks: {rank: text}, the Python stacks of the missing ranks that run on this host, or why there is none (the
            process is stopped, or holds its GIL).

    Example:
        >>> work = group.irecv((1,), src=group.rank)
        >>> try:
        ...     work.wait(timeout=0.01)
        ... except rw.CollectiveTimeout as error:
        ...     error.limit
        0.01
        >>> group.send(1.0, group.rank)
        >>> work.wait().tolist()
        [1.0]
    """

    _kind = TIMEOUT

    def __init__(
        self,
        message: str,
        *,
        limit: float = 0.0,
        missing: tuple[int, ...] = (),
        states: dict[int, str] | None = None,
        operation: str = "",
        sequence: int = -1,
        stacks: dict[int, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.missing = tuple(missing)
        self.states = dict(states or {})
        self.operation = operation
        self.sequence = sequence
        self.stacks = dict(stacks or {})
        _note(self)

    def _facts(self) -> dict[str, Any]:
        known = sorted(self.states.keys() | self.stacks.keys())
        ranks = {rank: {"call": self.states.get(rank, ""), "stack": self.stacks.get(rank, "")} for rank in known}
        return {
            "operation": self.operation,
            "sequence": self.sequence,
            "ranks": ranks,
            "to_blame": self.missing,
            "limit": self.limit,
        }


def _advice(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""


@public
class UnsupportedError(RankwiseError):
    """This backend cannot do this.

    Attributes:
        remedy: what to do instead.

    Example:
        >>> print(rw.UnsupportedError("all_reduce of fp8", "gloo", "it has no such type", "convert to float32"))
        all_reduce of fp8 is not supported by the gloo backend: it has no such type; convert to float32
    """

    def __init__(self, operation: str, backend: str, why: str = "", remedy: str = "") -> None:
        why_not = f": {why}" if why else ""
        super().__init__(f"{operation} is not supported by the {backend} backend{why_not}{_advice(remedy)}")
        self.operation = operation
        self.backend = backend
        self.why = why
        self.remedy = remedy

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return type(self), (self.operation, self.backend, self.why, self.remedy)


@public
class BackendUnavailable(RankwiseError, ImportError):
    """A backend's library or device is missing.

    Attributes:
        remedy: how to get it.

    Example:
        >>> print(rw.BackendUnavailable("mpi", "no module mpi4py", "pip install mpi4py"))
        backend 'mpi' is not available here: no module mpi4py; pip install mpi4py
    """

    def __init__(self, backend: str, missing: str, remedy: str = "") -> None:
        super().__init__(f"backend {backend!r} is not available here: {missing}{_advice(remedy)}")
        self.backend = backend
        self.missing = missing
        self.remedy = remedy

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.backend, self.missing, self.remedy)


@public
class ClosedError(RankwiseError):
    """The communicator (or the group over it) was closed, or belongs to this process's parent.

    Example:
        >>> part = group.dup()
        >>> part.close()
        >>> try:
        ...     part.barrier()
        ... except rw.ClosedError:
        ...     print("closed")
        closed
    """


def too_late(what: str, limit: float, why: str = "", **facts: Any) -> CollectiveTimeout:
    """The error of a wait that has lasted `limit` seconds. what: did not happen; facts: attributes of the error."""
    return CollectiveTimeout(f"{what} within {limit:.3g} s{why}", limit=limit, **facts)


def error_of(failure: Failure) -> RankwiseError:
    """The error that carries this failure."""
    ranks = sorted(failure.ranks.items())
    if failure.kind == LOST:
        return PeerLostError(
            failure.message,
            rank=next(iter(failure.to_blame), -1),
            how=failure.how,
            operation=failure.operation,
            sequence=failure.sequence,
            host=failure.host,
            pid=failure.pid,
        )
    if failure.kind == MISMATCH:
        return MismatchError(
            failure.message,
            calls={rank: at.text for rank, at in ranks},
            sequence=failure.sequence,
            sites={rank: at.site for rank, at in ranks if at.site},
            different=failure.to_blame,
        )
    if failure.kind == TIMEOUT:
        return CollectiveTimeout(
            failure.message,
            limit=failure.limit,
            missing=failure.to_blame,
            states={rank: at.call for rank, at in ranks if at.call},
            operation=failure.operation,
            sequence=failure.sequence,
            stacks={rank: at.stack for rank, at in ranks if at.stack},
        )
    return RankwiseError(failure.message)


latest_failure: Failure | None = None
"""The last failure of a group in this process, another object each time. That of a message alone does not count."""


def _note(error: PeerLostError | MismatchError | CollectiveTimeout) -> None:
    global latest_failure
    if error._kind == LOST or error.sequence > 0:
        latest_failure = error.failure


def as_exception(rank: int, error: BaseException) -> Exception:
    """The error of a call on a rank. Python's signals to end, such as SystemExit, end only that call."""
    if isinstance(error, Exception):
        return error
    ended = RankwiseError(f"rank {rank} raised {described(error)}")
    ended.__cause__ = error.__cause__ or error
    return ended


def described(error: BaseException) -> str:
    """'ValueError: the text', or 'ValueError' if it has none, whatever the error's own methods do."""
    name = type(error).__qualname__
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - it may even exit
        return f"{name}, which cannot be shown"
    return f"{name}: {text}" if text else name


def traceback_text(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python prints it, whatever the error's own methods do."""
    import traceback

    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 - as above
        return f"{''.join(traceback.format_tb(trace))}{described(error)}\n"


def shown(value: object) -> str:
    """An argument as shown in messages. A huge int is shown by its size, because repr may refuse to convert it."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"{'-' * (value < 0)}2**{value.bit_length() - 1}..."
    return repr(value)
