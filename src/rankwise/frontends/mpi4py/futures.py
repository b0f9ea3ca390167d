"""mpi4py.futures: its executors, over rankwise's pools."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

import rankwise as rw
from rankwise.frontends.mpi4py.errors import unsupported
from rankwise.system.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Self

PREPARES = ("path", "wdir", "env")
"""The options that change something in the workers before their first task."""

WITHOUT_EFFECT = ("main", "mpi_info", "use_pkl5", "backoff")

_shared: list[rw.Pool] = []  # under `python -m mpi4py.futures`, the other ranks


class MPIPoolExecutor(futures.Executor):
    """An executor whose workers are new processes of this host; under `python -m mpi4py.futures`, the other ranks.

    The workers start with the first task, or with `bootup`. A function of the main program, and a lambda, need
    cloudpickle.

    Args:
        max_workers: how many new processes; by default MPI4PY_FUTURES_MAX_WORKERS, else 1. Ignored under
            `python -m mpi4py.futures`, where all other ranks are workers.
        initializer: called with initargs in every worker before its first task. If it raises, the executor is broken.
        options: mpi4py's. path: a list that follows sys.path. wdir: the working directory. env: a dict of variables.
            Of the others, `globals`, `python_exe` and `python_args` are not provided.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        **options: Any,
    ) -> None:
        if max_workers is None:
            max_workers = int(os.environ.get("MPI4PY_FUTURES_MAX_WORKERS") or 1)
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        for name in options.keys() - {*PREPARES, *WITHOUT_EFFECT}:
            raise unsupported(f"mpi4py.futures.MPIPoolExecutor({name}=...)")
        self._n, self._given = max_workers, _shared[0] if _shared else None
        self._pool: rw.Pool | None = None
        self._starting = threading.Lock()
        self._broken: Exception | None = None  # the error of the initializer
        changes = {name: options[name] for name in PREPARES if options.get(name)}
        self._needs_preparation = bool(changes or initializer)
        self._prepare = partial(_prepare, os.urandom(8), changes, initializer, tuple(initargs))
        self._futures: set[futures.Future[Any]] = set()  # those that are not done
        self._ended = False

    @property
    def num_workers(self) -> int:
        return 0 if self._ended else self._workers().n

    def bootup(self, wait: bool = True) -> Self:
        """Start the workers, if they have not been started. It waits for them in any case."""
        self._workers()
        return self

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        pool = self._workers()
        if self._needs_preparation:  # a process that has taken the place of a lost one has not been prepared
            fn = partial(_prepared, self._prepare, fn)
        future: futures.Future[Any] = pool.submit(fn, *args, **kwargs)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        unordered: bool = False,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """As concurrent.futures' map. unordered: results as they come. buffersize: how many tasks, of chunksize
        calls each, may be submitted whose results have not been taken; by default all.
        """
        return self.starmap(fn, zip(*iterables, strict=False), timeout, chunksize, unordered, buffersize)

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Sequence[Any]],
        timeout: float | None = None,
        chunksize: int = 1,
        unordered: bool = False,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """`map` for arguments that are tuples already."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or >= 1.")
        end = None if timeout is None else time.monotonic() + timeout
        calls = iter(iterable)
        chunks = iter(lambda: list(islice(calls, chunksize)), [])
        pending: set[futures.Future[Any]] = set()
        taken: SimpleQueue[futures.Future[Any]] = SimpleQueue()  # the pending ones, in the order of the results

        def submit(chunk: list[Sequence[Any]]) -> None:
            future = self.submit(_chunk, fn, chunk)
            pending.add(future)
            if unordered:
                future.add_done_callback(taken.put)
            else:
                taken.put(future)

        def results() -> Iterator[Any]:
            try:
                while pending:
                    left = None if end is None else max(0.0, end - time.monotonic())
                    try:
                        future = taken.get(timeout=left)
                    except Empty:
                        raise futures.TimeoutError from None
                    pending.remove(future)
                    result = future.result(left)
                    for chunk in islice(chunks, 1):
                        submit(chunk)
                    yield from result
            finally:
                for future in pending:
                    future.cancel()

        for chunk in islice(chunks, buffersize):
            submit(chunk)
        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        if self._pool is None:
            return
        if self._pool is not self._given:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
            return
        for future in list(self._futures) if cancel_futures else ():
            future.cancel()
        if wait:
            futures.wait(self._futures)

    def _workers(self) -> rw.Pool:
        with self._starting:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._pool is None and self._broken is None:
                self._start()
            if self._pool is None:
                raise futures.BrokenExecutor(f"the initializer raised {self._broken!r}") from self._broken
            return self._pool

    def _start(self) -> None:
        pool = self._given or rw.Pool(self._n)
        try:
            pool.run(self._prepare)
            self._pool = pool
        except BaseException as error:
            if pool is not self._given:
                pool.shutdown()
            if not isinstance(error, Exception):
                raise
            self._broken = error


class MPICommExecutor:
    """A context in which the ranks of `comm`, but for root, are the workers of root's executor.

    On root, `with` returns the executor. On the other ranks it returns None, once root has left its block. A
    communicator of one rank uses one thread as its worker. Under `python -m mpi4py.futures` the workers are the other
    ranks of the job, which never come here.
    """

    def __init__(self, comm: Any = None, root: int = 0, **options: Any) -> None:
        from rankwise.frontends.mpi4py import MPI  # meets the other ranks

        self._comm = MPI.COMM_WORLD if comm is None else comm
        if not 0 <= root < self._comm.size:
            raise ValueError(f"root={root}: expected a rank of the communicator, 0 to {self._comm.size - 1}")
        self._root, self._executor = root, MPIPoolExecutor(**options)
        self._serving: AbstractContextManager[Any] = nullcontext()  # on root the pool, unless the ranks serve another

    def __enter__(self) -> MPIPoolExecutor | None:
        comm = self._comm
        if _shared:
            return self._executor
        if comm.size == 1:
            pool: Any = rw.Pool(1, threads=True)
        else:
            comm = comm.Split(0, (comm.rank - self._root) % comm.size)  # root is its rank 0
            pool = rw.Pool(group=comm._live().group)
        if pool.__enter__() is None:
            return None
        self._serving = self._executor._given = pool
        return self._executor

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._executor.shutdown(wait=kind is None, cancel_futures=kind is not None)
        finally:
            self._serving.__exit__(kind, value, trace)


def get_comm_workers() -> Any:
    """In a task: the communicator of all workers."""
    return _communicator(rw.init())


@lru_cache(maxsize=1)
def _communicator(group: rw.Group) -> Any:
    from rankwise.frontends.mpi4py import MPI

    return MPI.COMM_WORLD._made(group)


def _chunk(fn: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Any]:
    return [fn(*call) for call in calls]


def _prepare(
    mark: bytes, changes: Mapping[str, Any], initializer: Callable[..., object] | None, initargs: Sequence[Any]
) -> None:
    """In every worker at once, before the first task. mark: identifies the executor."""
    import_module("rankwise.frontends.mpi4py.MPI")  # in which the ranks of new processes meet
    sys.path.extend(changes.get("path", ()))
    os.environ.update(changes.get("env", {}))
    if "wdir" in changes:
        os.chdir(changes["wdir"])
    if initializer is not None:
        initializer(*initargs)
    rw.local.prepared_for_futures = mark


def _prepared(prepare: partial[None], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """fn's result, on a worker that has been prepared."""
    if getattr(rw.local, "prepared_for_futures", None) != prepare.args[0]:
        prepare()
    return fn(*args, **kwargs)


USAGE = """\
usage: python -m mpi4py.futures (program.py | -m module | -c command) [arguments]

Rank 0 runs the program. The other ranks are the workers of its MPIPoolExecutors; a job of one rank has none, and its
executors start processes."""


def main() -> None:
    """The program of `python -m mpi4py.futures`."""
    arguments = sys.argv[1:]
    first_rank = not Settings.read().rank
    if arguments[:1] in (["-h"], ["--help"]):
        if first_rank:
            print(USAGE)
        return
    if not arguments or arguments in (["-m"], ["-c"]):
        raise SystemExit(USAGE if first_rank else 1)
    from rankwise.frontends.mpi4py import MPI  # in which the ranks meet

    if MPI.COMM_WORLD.size == 1:
        _run(arguments)
        return
    with rw.Pool(group=MPI.COMM_WORLD._live().group) as pool:
        if pool is not None:
            _shared.append(pool)
            _run(arguments)


def _run(arguments: Sequence[str]) -> None:
    """As `python` with these arguments would."""
    first, *rest = arguments
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main_module = types.ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(rest[0], "<string>", "exec"), vars(main_module))
    elif first == "-m":
        sys.argv, sys.path[:0] = rest, [os.getcwd()]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = [first, *rest], [os.path.dirname(os.path.abspath(first))]
        runpy.run_path(first, run_name="__main__")
