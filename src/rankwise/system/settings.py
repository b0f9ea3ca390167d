"""Every environment variable of rankwise, read in one place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from rankwise.contract.timeouts import TIMEOUT, is_timeout

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

SPANS_MEMFD = "rankwise-spans"
"""The name of the memory behind RANKWISE_TRACE_FD, by which a rank recognises the descriptor."""

STATE_MEMFD = "rankwise-state"
"""The name of the memory behind RANKWISE_STATE_FD, likewise."""

MEMBERSHIP_MEMFD = "rankwise-membership"
"""The name of the memory behind RANKWISE_MEMBERSHIP_FD, likewise."""

FAILURES_MEMFD = "rankwise-failures"
"""The name of the memory behind RANKWISE_FAILURES_FD, likewise."""

DEBUGGER_MEMFD = "rankwise-debugger"
"""The name of the memory behind RANKWISE_DEBUGGER_FD, likewise."""

OF_SOME_JOBS = (
    "RANKWISE_TRACE_FD", "RANKWISE_STATE_FD", "RANKWISE_MEMBERSHIP_FD", "RANKWISE_RESTART", "RANKWISE_LOCAL_RANK",
    "RANKWISE_LOCAL_WORLD_SIZE", "RANKWISE_THRESHOLDS", "RANKWISE_TERMINAL_FD", "RANKWISE_DEBUGGER_FD",
    "RANKWISE_JOINED",
    "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
"""The variables that only some jobs set: the others remove them, in case a launcher around this one has set them."""


def is_memory(fd: int | None, name: str) -> bool:
    """Whether `fd` is a memfd of this name. A rank's child inherits the variable with its number, but not the memfd."""
    try:
        return fd is not None and os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{name} ")
    except OSError:
        return False


_LONGEST_DIRECTORY = 56  # bytes; a socket's path may have 107


class Settings:
    """The environment variables. `Settings.read()` reads them anew.

    Code that must not fail because of another variable, or that runs without this class, reads its own alone.

    RANKWISE_RANK           this process's rank, set by the launcher
    RANKWISE_WORLD_SIZE     how many ranks the job has, set by the launcher
    RANKWISE_LOCAL_RANK     this process's number among the ranks that its launcher started, set by the launcher of a
                            job on several nodes (rankwise run --nnodes)
    RANKWISE_LOCAL_WORLD_SIZE  how many ranks this process's launcher started, set likewise
    RANKWISE_SEGMENT_FD     descriptor of the shared memory of the launcher's ranks, inherited from the launcher
    RANKWISE_LAUNCHER_PID   the launcher's pid; a rank ends when its launcher does
    RANKWISE_RESTART        how many processes were started for this rank before this one; set by a launcher that starts
                            lost ranks again
    RANKWISE_JOINED         pid, and job, of the rank that this process is or was started by; a rank sets it itself when
                            it joins, so that its child processes, which inherit its variables, are not ranks
    RANKWISE_SECRET         a text that only this job's ranks know, and which they prove to each other that they know;
                            the name of the socket by which they meet depends on it too. rankwise run makes one (128
                            random bits) for the ranks of one host. Set the same for all launchers of several nodes, so
                            that no others can join
    RANKWISE_SOCKET_DIR     a directory that the containers of a host share, in which their ranks meet by a unix socket;
                            for containers in different network namespaces (docs/how-to/containers.md)
    RANKWISE_BACKEND        backend to use instead of the default (solo, shm, ...)
    RANKWISE_TIMEOUT        seconds that an operation may wait for other ranks (default 300; rankwise.watch: 60)
    RANKWISE_GRACE          seconds from the signal that asks a rank to end (SIGTERM, or that which the launcher
                            received) to SIGKILL (default 10), as the option --grace. If another rank has failed, a
                            tenth of it passes before that signal, so that each rank may print its own error
    RANKWISE_ALLOW_PICKLE   1 or 0: whether operations on objects allow pickles unless their argument says otherwise
                            (default 0), as rw.init(allow_pickle=True); the same on all ranks, which must trust each
                            other
    RANKWISE_TRACE          the file to which `rankwise run` writes the last operations of each rank, as its `--trace`
    RANKWISE_TRACE_FD       descriptor of the memory for a rank's spans (rankwise.trace), set by the launcher
    RANKWISE_STATE_FD       descriptor of the memory in which a rank's rankwise.elastic.State outlives the rank, set by
                            a launcher that starts lost ranks again
    RANKWISE_MEMBERSHIP_FD  descriptor of the memory in which the ranks note which of them go on without which, set by
                            a launcher whose job goes on after losses
    RANKWISE_FAILURES_FD    descriptor of the memory in which a rank reports why its program failed, set by the launcher
    RANKWISE_TERMINAL_FD    descriptor of the terminal that breakpoint() on a rank uses, set by the launcher
    RANKWISE_DEBUGGER_FD    descriptor of the memory that says which rank uses it, and when one last did, set likewise
    RANKWISE_CHECK          1 or 0: whether the ranks of gloo, mpi, nccl and other packages' backends compare their
                            calls before each collective (default: 1 on gloo, 0 on the others). The other backends
                            always do
    RANKWISE_ALGORITHM      algorithms that the backend must run instead of its own choice:
                            `all_reduce=staged,all_gather=single_copy`; the same on all ranks. An algorithm that
                            cannot run is an error. A group of one rank ignores it, as do calls without data on shm
                            and threads. docs/reference/tuning.md lists them
    RANKWISE_TUNING         the tuning file whose thresholds decide which algorithm runs at which size; the same on all
                            ranks of a host. none: the default thresholds. Without it the file that `rankwise tune`
                            wrote for this CPU, if there is one (docs/reference/tuning.md)
    RANKWISE_THRESHOLDS     the thresholds of that file, set by the launcher for ranks that are compiled programs
    RANKWISE_DIRECT         1 or 0: whether ranks of one host may read and write each other's private memory (default
                            1). If it is 0 on any of them, no single-copy algorithm is chosen, and messages are
                            copied through the ring buffer in shared memory
    RANKWISE_UNEXPECTED_BYTES  limit on the unexpected messages that a rank keeps in each group on shm and threads, in
                            bytes (default 64 MiB). Beyond it, the data stays with its sender until a receive matches,
                            and a blocking send waits until then
    RANKWISE_REGISTERED     1 or 0: whether NumPy, after rw.init(), allocates all arrays of at least a page in
                            registered memory (default 0); the same as the option --registered
                            (docs/how-to/registered-memory.md)
    RANKWISE_OVERSUBSCRIBED 1 or 0: whether the ranks of this host share cores, instead of what the number of cores
                            says; ranks choose algorithms and how they wait by it. For tests
    RANKWISE_TORCH_AS       gloo: programs that ask torch.distributed for the backend gloo use rankwise for their CPU
                            tensors; torch.distributed still names their backend gloo (docs/how-to/torch.md)
    RANKWISE_TCL_SIMULATE   1 or 0: whether distributed_init of the Tcl front-end simulates its ranks even if a launcher
                            or an address for the ranks is given (default 0)
    RANKWISE_TCL_PYTHON     the Python that a stock tclsh starts for torchtcl; torchtcl.tcl reads it
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the variables. A ValueError names a variable with an invalid value."""
        self.rank = integer(environ, "RANKWISE_RANK")
        self.world_size = integer(environ, "RANKWISE_WORLD_SIZE")
        self.local_rank = integer(environ, "RANKWISE_LOCAL_RANK")
        self.local_world_size = integer(environ, "RANKWISE_LOCAL_WORLD_SIZE")
        self.segment_fd = integer(environ, "RANKWISE_SEGMENT_FD")
        self.launcher_pid = integer(environ, "RANKWISE_LAUNCHER_PID")
        self.restart = integer(environ, "RANKWISE_RESTART") or 0
        self.joined = environ.get("RANKWISE_JOINED", "")
        self.secret = os.fsencode(environ.get("RANKWISE_SECRET", ""))
        self.socket_dir = environ.get("RANKWISE_SOCKET_DIR") or None
        self.backend = environ.get("RANKWISE_BACKEND") or None
        given = _read(environ, "RANKWISE_TIMEOUT", _seconds, TIMEOUT)
        self.timeout_given, self.timeout = given is not None, given or 300.0
        self.grace = _read(environ, "RANKWISE_GRACE", _seconds, TIMEOUT) or 10.0
        self.allow_pickle = _switch(environ, "RANKWISE_ALLOW_PICKLE") is True
        self.trace = environ.get("RANKWISE_TRACE") or None
        self.trace_fd = integer(environ, "RANKWISE_TRACE_FD")
        self.state_fd = integer(environ, "RANKWISE_STATE_FD")
        self.membership_fd = integer(environ, "RANKWISE_MEMBERSHIP_FD")
        self.check = _switch(environ, "RANKWISE_CHECK")
        named = _read(environ, "RANKWISE_ALGORITHM", _algorithms, "operation=algorithm, separated by commas")
        self.algorithms = named or {}
        self.tuning = environ.get("RANKWISE_TUNING") or None
        self.direct = _switch(environ, "RANKWISE_DIRECT") is not False
        limit = _read(environ, "RANKWISE_UNEXPECTED_BYTES", _bytes, "a number of bytes of at least 0")
        self.unexpected_bytes = 64 << 20 if limit is None else limit
        self.registered = _switch(environ, "RANKWISE_REGISTERED") is True
        self.oversubscribed = _switch(environ, "RANKWISE_OVERSUBSCRIBED")
        self.tcl_simulate = _switch(environ, "RANKWISE_TCL_SIMULATE") is True

    @classmethod
    def read(cls) -> Settings:
        return cls(os.environ)

    def socket_directory(self) -> str | None:
        """RANKWISE_SOCKET_DIR, if it is set. ValueError if it cannot be used, or others could replace what is in it."""
        directory = self.socket_dir
        if directory is None:
            return None
        variable = f"environment variable RANKWISE_SOCKET_DIR={directory!r}"
        try:
            info = os.stat(directory)
        except OSError as error:
            raise ValueError(f"{variable}: expected a directory that all ranks share: {error.strerror}") from None
        if not stat.S_ISDIR(info.st_mode):
            raise ValueError(f"{variable}: expected a directory that all ranks share, found a file")
        private = info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not private and not info.st_mode & stat.S_ISVTX:
            raise ValueError(
                f"{variable}: expected a directory that belongs to this user and into which nobody else can write, or "
                f"one with the sticky bit like /tmp; it belongs to user {info.st_uid} and has the mode "
                f"{stat.S_IMODE(info.st_mode):04o}"
            )
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ValueError(f"{variable}: expected a directory that this user can write to")
        if len(os.fsencode(directory)) > _LONGEST_DIRECTORY:
            raise ValueError(
                f"{variable}: expected a path of at most {_LONGEST_DIRECTORY} bytes, since a unix socket's is short"
            )
        return directory


def _read(environ: Mapping[str, str], name: str, parse: Callable[[str], T | None], expected: str) -> T | None:
    """The variable's value; None if it is absent or empty. ValueError names it if `parse` raises one or gives None."""
    text = environ.get(name)
    if not text:
        return None
    try:
        value = parse(text)
    except ValueError:
        value = None
    if value is None:
        raise ValueError(f"environment variable {name}={text!r}: expected {expected}")
    return value


def integer(environ: Mapping[str, str], name: str) -> int | None:
    """The variable as an int; None if it is absent or empty. ValueError names it if it is no integer."""
    return _read(environ, name, int, "an integer")


def _switch(environ: Mapping[str, str], name: str) -> bool | None:
    return _read(environ, name, {"0": False, "1": True}.get, "1 or 0")


def set_joined(text: str) -> None:
    """Set RANKWISE_JOINED for this process and its children."""
    os.environ["RANKWISE_JOINED"] = text


def torch_as() -> str | None:
    """RANKWISE_TORCH_AS, which is read alone: `import torch` must not fail because of another variable."""
    return _read(os.environ, "RANKWISE_TORCH_AS", {"gloo": "gloo"}.get, "gloo, or nothing")


def failures_memory() -> tuple[int, int] | None:
    """RANKWISE_FAILURES_FD and RANKWISE_RANK, if a launcher reads the failures of this process.

    They are read alone: an error must not be hidden because another variable is invalid.
    """
    fd, rank = integer(os.environ, "RANKWISE_FAILURES_FD"), integer(os.environ, "RANKWISE_RANK")
    return (fd, rank) if fd is not None and rank is not None and is_memory(fd, FAILURES_MEMFD) else None


def debugger_memory() -> tuple[int, int, int] | None:
    """RANKWISE_TERMINAL_FD, RANKWISE_DEBUGGER_FD and RANKWISE_RANK, read alone; None if there is no terminal."""
    terminal, memory = integer(os.environ, "RANKWISE_TERMINAL_FD"), integer(os.environ, "RANKWISE_DEBUGGER_FD")
    rank = integer(os.environ, "RANKWISE_RANK")
    if terminal is None or memory is None or rank is None or not is_memory(memory, DEBUGGER_MEMFD):
        return None
    return terminal, memory, rank


def _seconds(text: str) -> float | None:
    value = float(text)
    return value if is_timeout(value) else None


def _bytes(text: str) -> int | None:
    value = int(text)
    return value if 0 <= value < 1 << 63 else None


def _algorithms(text: str) -> dict[str, str] | None:
    """{operation: algorithm}; the backend checks the names."""
    pairs = [[word.strip() for word in item.split("=", 1)] for item in text.split(",") if item.strip()]
    return {pair[0]: pair[1] for pair in pairs} if all(len(pair) == 2 and all(pair) for pair in pairs) else None
