"""`rankwise.spawn`: run a function on new ranks of this host, from a notebook, a test or a script."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rankwise.contract.errors import MismatchError, PeerLostError, RankwiseError, described
from rankwise.contract.public import public
from rankwise.contract.timeouts import check_timeout
from rankwise.launch.last_calls import difference
from rankwise.launch.limits import check_ranks
from rankwise.launch.local import LocalJob
from rankwise.launch.output import OutputMultiplexer
from rankwise.launch.rank_process import RankProcess
from rankwise.launch.spawn_worker import ERROR, RESULT, pickler

T = TypeVar("T")

# The first code that a worker runs. It sets the parent's sys.path, so that everything else can be imported.
_BOOT = """\
import pickle, sys
payload = open('/proc/self/fd/' + sys.argv[1], 'rb')  # opened again, so that each rank has its own offset
sys.path[:] = pickle.load(payload)
from rankwise.launch.spawn_worker import main
main(payload, [int(fd) for fd in sys.argv[2:]])
"""


class RankTraceback(Exception):
    """The cause of an error that was raised on a rank: the traceback on that rank, as text."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@public
def spawn(
    fn: Callable[..., T], n: int, *args: Any, timeout: float | None = None, threads: bool = False, **kwargs: Any
) -> list[T]:
    """Run `fn(*args, **kwargs)` on n new ranks of this host; return its results, by rank.

    Each rank is a new interpreter in which `rankwise.init()` finds its rank. fn, its arguments and its results are
    pickled; functions of a notebook or script, lambdas and closures need cloudpickle (pip install
    'rankwise[notebook]'). The ranks' output appears in this process's sys.stdout and sys.stderr, in whole lines; the
    ranks have no standard input.

    When fn raises on a rank, the other ranks are ended and the error is raised here; its cause is the traceback on that
    rank. If several ranks raise, it is the first error that does not merely report the loss of another rank. Processes
    that the ranks have started are ended too, even daemons in sessions of their own, except those that were started
    without their rank's environment variables.

    Args:
        timeout: seconds that an operation may wait for other ranks; by default RANKWISE_TIMEOUT, else 300. It does not
            limit fn's own time.
        threads: run fn on threads of this process instead, over the backend threads. Nothing is pickled: every rank
            gets the same arguments and returns its own object, and fn may be any function. `rw.init()` and `rw.local`
            are the thread's. When fn raises on a rank, operations of the group fail on the other ranks, and ranks that
            are still in their call a second later get a KeyboardInterrupt. Ctrl-C interrupts all ranks at once. A
            thread cannot be ended: spawn waits until all calls have ended. After Ctrl-C it waits for a few seconds at
            most; a call in C, such as `time.sleep`, may then still be running in a daemon thread. An error is raised as
            it is, with its own traceback. With a global interpreter lock, only one rank runs Python code at a time; a
            UserWarning says so once per process.

    Raises:
        RankwiseError: fn's error cannot be pickled, or, on a thread, is a SystemExit or the like; it has the error's
            text.
        PeerLostError: a rank ended without a result.
        MismatchError: no rank failed, but one called a collective at its end that another never called.
        TypeError: fn or its arguments cannot be pickled, or a result cannot be unpickled here.
        ValueError: n is below 1 or above 1024.

    Example:
        >>> rw.spawn(divmod, 2, 7, 2)  # any function, here one that does not communicate
        [(3, 1), (3, 1)]
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: expected a function")
    check_ranks(n)
    if timeout is not None:
        timeout = check_timeout(timeout)
    if threads:
        return _on_threads(partial(fn, *args, **kwargs), n, timeout)
    dumps = pickler(fn)
    output = OutputMultiplexer(sys.stdout, sys.stderr, alone=n == 1)
    with ExitStack() as stack:
        payload = _memory_file(stack)
        pickle.dump(module_path(fn), payload)
        try:
            payload.write(dumps((fn, args, kwargs)))
        except Exception as error:  # whatever their classes raise
            raise TypeError(f"fn and its arguments cannot be sent to other processes: {described(error)}") from error
        payload.flush()
        results = [_memory_file(stack) for _ in range(n)]
        fds = [file.fileno() for file in (payload, *results)]
        argv = [sys.executable, "-c", _BOOT, *map(str, fds)]
        with LocalJob(argv, n, output, pass_fds=fds, timeout=timeout) as job:
            job.wait()
        reports = [_report(file) for file in results]
    if job.failures or any(kind != RESULT for kind, _ in reports):
        raise _failure(job, reports)
    if reason := job.ending.reason:  # their last calls differ, which none of them noticed
        raise MismatchError(reason)
    return [
        unpickled(partial(pickle.loads, data), f"the result of rank {rank}") for rank, (_, data) in enumerate(reports)
    ]


def _on_threads(fn: Callable[[], T], n: int, timeout: float | None) -> list[T]:
    from rankwise import rank_threads  # loads NumPy, which the launcher needs for nothing else

    rank_threads.warn_of_gil(n)
    invitations = rank_threads.invitations(n, timeout)
    endings = rank_threads.run_on_threads(lambda group: fn(), invitations)
    errors = [ending.exception() for ending in endings if ending.error is not None]
    if errors:
        try:
            raise next((error for error in errors if not isinstance(error, PeerLostError)), errors[0])
        finally:
            del endings, errors  # which the error's traceback would keep, and they the error
    segment = invitations[0].segment
    if segment is not None and (reason := difference(segment.fd, 0)):
        raise MismatchError(reason)
    return [ending.value for ending in sorted(endings, key=lambda ending: ending.rank)]  # type: ignore[misc]


def module_path(fn: Callable[..., object]) -> list[str]:
    """sys.path for a worker: this process's, and the folder from which fn's module can be imported by name.

    That folder is not on this process's sys.path if pytest imported the module from its file.
    """
    path = [os.path.abspath(entry) for entry in sys.path]
    name = getattr(fn, "__module__", None) or ""
    origin = getattr(sys.modules.get(name), "__file__", None)
    if origin is None:  # a notebook, `python -c`
        return path
    file = Path(origin).with_suffix("")
    if file.name == "__init__":
        file = file.parent
    names = name.split(".")
    if list(file.parts[-len(names) :]) == names:
        path.append(str(file.parents[len(names) - 1]))
    return path


def _memory_file(stack: ExitStack) -> BinaryIO:
    return stack.enter_context(open(os.memfd_create("rankwise-spawn"), "w+b"))


def _report(file: BinaryIO) -> tuple[bytes, bytes]:
    """The report's first byte (RESULT or ERROR) and the rest; both are empty if the rank wrote no report."""
    file.seek(0)
    return file.read(1), file.read()


def unpickled(load: Callable[[], T], what: str) -> T:
    """What `load` unpickles; `what` names it in the error."""
    try:
        return load()
    except BaseException as error:  # whatever its classes raise
        if isinstance(error, KeyboardInterrupt) and _interrupt_raises():
            raise
        raise TypeError(f"{what} cannot be unpickled in this process: {described(error)}") from error


def _interrupt_raises() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt in this thread."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _failure(job: LocalJob, reports: list[tuple[bytes, bytes]]) -> BaseException:
    lost: BaseException | None = None
    # First the ranks that failed, in that order; then those that exited with 0 but left no result.
    for rank in [*job.failures, *(rank for rank in job.ranks if rank.returncode == 0)]:
        kind, data = reports[rank.number]
        if kind == ERROR:
            error = raised_on(rank.number, data)
            if not (rank.failed_by_loss or isinstance(error, PeerLostError)):
                return error
            lost = lost or error
        elif not kind or rank.returncode:
            return died(rank)
    assert lost is not None
    return lost


def raised_on(rank: int, report: bytes) -> BaseException:
    """The error that a rank reports. Its cause is the traceback there."""
    pickled, description, text = pickle.loads(report)
    text = text.removesuffix(description.partition("\n")[2] + "\n")  # the rest of a long message, which the error has
    cause = RankTraceback(f"rank {rank}:\n{text}")
    error: BaseException
    try:
        error = unpickled(partial(_error, pickled, cause), "the error")
    except TypeError:
        error = RankwiseError(f"rank {rank} raised {description}")
        error.__cause__ = cause
    return error


def _error(pickled: bytes, cause: RankTraceback) -> BaseException:
    error = pickle.loads(pickled)
    if not isinstance(error, BaseException):
        raise TypeError(f"its __reduce__ made {type(error).__name__} of it")
    object.__setattr__(error, "__cause__", cause)  # a frozen dataclass refuses it
    return error


def died(rank: RankProcess) -> PeerLostError:
    """The error of a rank that ended without a result."""
    what = "without a result" if rank.returncode == 0 else ""
    return PeerLostError(
        f"rank {rank.number} {rank.how}{rank.where} {what}".rstrip(),
        rank=rank.number,
        how=rank.how,
        operation=rank.operation,
        sequence=rank.sequence,
    )
