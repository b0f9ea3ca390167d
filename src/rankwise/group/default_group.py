"""The default group of this process, or of a thread that is a rank of its own.

Its operations are also functions of the module `rankwise`, whose __init__.pyi declares their types. Each thread has its
own entry in `_of_threads`, which it alone changes.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError
from rankwise.contract.public import public
from rankwise.group.group import Group, announce_renewal

_of_process: Group | None = None
_lock = threading.Lock()  # held while _of_process changes
_of_threads: dict[int, Group | None] = {}  # of threads that are ranks of their own


def default_group() -> Group:
    """The group that `init` made, or that took its place by shrink or restore.

    Raises ClosedError if init was not called.
    """
    group = _of_threads.get(threading.get_ident(), _of_process) if _of_threads else _of_process
    if group is not None and group.successor is not None:
        group = current()
    if group is None:
        raise ClosedError("there is no default group yet: call `group = rw.init()` before the first operation")
    return group


def current() -> Group | None:
    """The default group, which may be closed; None if there is none yet."""
    global _of_process
    thread = threading.get_ident()
    if thread in _of_threads:
        _of_threads[thread] = group = _latest(_of_threads[thread])
        return group
    with _lock:
        _of_process = _latest(_of_process)
        return _of_process


def set_for_process(group: Group) -> Group:
    """Make `group` the default group of all threads that are not ranks of their own; returns it."""
    global _of_process
    with _lock:
        _of_process = group
    announce_renewal()
    return group


def thread_is_rank() -> bool:
    """Whether this thread is a rank of its own."""
    return threading.get_ident() in _of_threads


@contextmanager
def rank_of_this_thread(group: Group | None) -> Iterator[None]:
    """A context in which this thread is a rank of its own, as other threads of the process may be, and `group` is its
    default group; None if it has none yet.
    """
    thread = threading.get_ident()
    within, outer = thread in _of_threads, _of_threads.get(thread)
    _of_threads[thread] = group
    try:
        yield
    finally:
        if within:
            _of_threads[thread] = outer
        else:
            del _of_threads[thread]


def function_of(name: str) -> Callable[..., Any]:
    """A function that calls the operation `name` of the default group, with the same docstring and parameters."""
    method = getattr(Group, name)
    signature = inspect.signature(method)
    _, *parameters = signature.parameters.values()  # without self

    @functools.wraps(method)
    def operation(*args: Any, **kwargs: Any) -> Any:
        return method(default_group(), *args, **kwargs)

    operation.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    operation.__qualname__ = method.__name__
    operation.__module__ = "rankwise"
    return operation


def _latest(group: Group | None) -> Group | None:
    while group is not None and group.successor is not None:
        group = group.successor
    return group


@public
@contextmanager
def registered(group: Any = None) -> Iterator[None]:
    """A context in which NumPy allocates arrays of at least a page in the registered memory of `group`.

    Use it for arrays that are created in code that cannot call `group.empty`. Temporaries are allocated there too, so
    keep the block short. It affects this thread only.

    Args:
        group: by default the group of all ranks.

    Example:
        >>> with rw.registered():
        ...     gradients = np.zeros(100_000)
        >>> group.all_reduce(gradients).shape
        (100000,)
    """
    if group is None:
        group = default_group()
    with group.comm.allocating():
        yield


def register_all(comm: Communicator) -> None:
    """RANKWISE_REGISTERED=1: from now on, this thread's new arrays of at least a page lie in registered memory.

    So do those of asyncio's tasks, which take over the context, but not those of other threads. A process that is
    forked shares the arrays with its parent, and makes ordinary ones.
    """
    context = comm.allocating()
    context.__enter__()

    def end() -> None:
        context.__exit__(None, None, None)

    atexit.register(end)
    os.register_at_fork(before=_warn_of_forks, after_in_child=end)


@functools.lru_cache(1)  # once
def _warn_of_forks() -> None:
    warnings.warn(
        "a fork of a program whose arrays are in registered memory (RANKWISE_REGISTERED=1): the child shares the "
        "arrays instead of having copies, so what one of the two writes, the other sees; expected a child that only "
        'reads them, or a new process (multiprocessing\'s start method "spawn")',
        RuntimeWarning,
        stacklevel=2,
    )
