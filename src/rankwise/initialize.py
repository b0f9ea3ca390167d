"""init finds this process's rank, opens a backend, and makes the group of all ranks, which is the default group."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from rankwise import _native
from rankwise.backends import registry
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import BackendUnavailable, ClosedError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.contract.public import public
from rankwise.contract.timeouts import check_timeout
from rankwise.group import default_group
from rankwise.group.group import Group
from rankwise.launch.environment import join_job
from rankwise.system import failure_report, tuning_file
from rankwise.system.membership import Membership
from rankwise.system.settings import Settings, debugger_memory

_lock = threading.Lock()


@public
def init(
    backend: str | None = None,
    *,
    timeout: float | None = None,
    tuning: str | os.PathLike[str] | None = None,
    allow_pickle: bool | None = None,
) -> Group:
    """Meet the other ranks of this job and return the group of all ranks, which becomes the default group.

    The rank and the number of ranks come from `rankwise run`, torchrun, mpiexec or Slurm. Without any of these, the
    group is this process alone. So it is in a child process of a rank, where a warning is logged. Further calls return
    the same group, or the one that took its place by shrink or restore, until it is closed. In a process that replaces
    a lost rank, it waits for the survivors' restore. On a thread that is a rank of `rw.spawn`, `rw.Pool` or
    `rw.testing.run_ranks`, it returns that rank's group.

    Args:
        backend: a name; by default RANKWISE_BACKEND, else a backend that suits the job.
        timeout: seconds that this and every later operation may wait for the other ranks; by default RANKWISE_TIMEOUT,
            else 300.
        tuning: the file in which `rankwise tune` wrote which algorithm suits which size, the same on all ranks of a
            host, or "none" for the default thresholds; by default RANKWISE_TUNING, else this user's file for this CPU,
            if there is one. It changes how ranks of one host exchange data; the other backends ignore it.
        allow_pickle: whether operations on objects allow pickles unless their argument says otherwise, in this group
            and those made of it; the same on all ranks; by default RANKWISE_ALLOW_PICKLE, else no. Unpickling runs code
            that the sender chose, so the ranks must trust each other.

    Raises:
        ValueError: the backend is unknown, or differs from the default group's; or the tuning file cannot be used, even
            one found by default, so that it is never ignored silently.
        CollectiveTimeout, PeerLostError: ranks do not arrive.

    Example:
        >>> world = rw.init()
        >>> world.world_size, rw.init() is world
        (2, True)
    """
    if timeout is not None:
        timeout = check_timeout(timeout)
    named = None if tuning is None else _path(tuning)
    with _lock:
        group = default_group.current()
        if group is not None and not group.closed:
            if backend is not None and backend != group.backend:
                raise ValueError(f"backend={backend!r}: the default group already uses {group.backend!r}")
            if named is not None:
                raise ValueError(f"tuning={named!r}: the default group is already open; pass tuning to the first init")
            if timeout is not None:
                group.timeout = timeout
            if allow_pickle is not None:
                group.allow_pickle = allow_pickle
            return group
        if default_group.thread_is_rank():
            raise ClosedError("init: this thread is a rank whose group is closed; it cannot get another")
        _follow_launcher()
        settings = Settings.read()
        job = join_job(settings)
        name = backend or settings.backend or job.default_backend
        given = "backend" if backend else "environment variable RANKWISE_BACKEND"
        # A rank ends when its launcher does; a child process of a rank, which is no rank, does not.
        if settings.launcher_pid is not None and job.launcher:
            _native.end_with(settings.launcher_pid)
        if job.restart and name != "shm":
            why = "a process that replaces a lost one cannot join the survivors"
            raise UnsupportedError("restarting a rank", name, why, "use the backend shm, or run without --restarts")
        if named is not None:
            job = replace(job, tuning=named)
        comm = registry.opener(name, given)(job, timeout or settings.timeout)
        if settings.check and name not in registry.BUILT_IN:
            from rankwise.backends.composed.checked import CheckedCommunicator  # few jobs need it, and it imports much

            comm = CheckedCommunicator(comm)
        if settings.registered:
            default_group.register_all(comm)
        trusted = settings.allow_pickle if allow_pickle is None else allow_pickle
        group = Group(_traced(comm, job), backend=name, membership=Membership.of(settings), allow_pickle=trusted)
        return default_group.set_for_process(group)


def _path(tuning: str | os.PathLike[str]) -> str:
    """The path of a tuning file that can be used, or "none"."""
    path = os.fspath(tuning) if isinstance(tuning, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise TypeError(f"tuning: {tuning!r} given, expected the path of a tuning file, or 'none'")
    if path != tuning_file.NONE:
        tuning_file.load(path, _native.thresholds())
    return path


def connect(job: Job, backend: str, timeout: float) -> Communicator:
    """Meet the other ranks of a job that is not described by the environment, as torch's groups are not.

    Raises BackendUnavailable if this rankwise has no such backend, and the backend's own errors.
    """
    if backend not in registry.names():
        raise BackendUnavailable(backend, "this release of rankwise does not have it", "start all ranks on one host")
    _follow_launcher()
    return _traced(registry.opener(backend)(job, timeout), job)


def _follow_launcher() -> None:
    """From now on, the launcher learns of an uncaught exception, and no timeout runs while a rank is in a debugger."""
    failure_report.report_at_exit()
    memory = debugger_memory()
    if memory is not None:
        _native.read_debugged_from(memory[1])


def _traced(comm: Communicator, job: Job) -> Communicator:
    """The communicator of all ranks of a job, which writes to the job's trace if `rankwise run` made one."""
    if comm.traced or job.segment_fd is None:
        return comm
    from rankwise.backends.composed.traced import TracedCommunicator  # likewise

    return TracedCommunicator.in_segment(comm, job.segment_fd, job.local_rank)
