"""`rankwise run`: run a program on n ranks of this host."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rankwise.contract.errors import RankwiseError
from rankwise.contract.settings import TIMEOUT, Settings, is_timeout
from rankwise.launch.local import LocalJob, RankProcess, adopt_orphans, signal_name
from rankwise.launch.output import LONGEST_LINE, OutputMultiplexer
from rankwise.tools.cli import Parser
from rankwise.tools.trace_policy import TracePolicy

NOT_FOUND = 127  # the exit code that shells give for a missing program

DESCRIPTION = """\
Run a program on N ranks of this host. Each rank is a process that calls rankwise.init() to learn
its rank. Output is printed in whole lines; a line longer than {longest} is printed in pieces, and equal
tracebacks of several ranks are printed once. When a rank fails, the others are ended, the command exits
with the failed rank's exit code, and the last line names that rank and what it was doing. When an
operation times out, the last lines name the rank that did not come and show its Python stack.
"""

EPILOG = """\
PROGRAM is a Python file (train.py), a Tcl script (train.tcl, run by rankwise tclsh), a module
(-m package.module) or a command on PATH (with or without -- before it); python and python3 mean the
Python in which rankwise is installed. Everything after PROGRAM is passed to it.

examples:
  rankwise run -n 4 train.py --epochs 3
  rankwise run -n 2 -m package.module
  rankwise run -n 4 python -c "import rankwise as rw; print(rw.init().rank)"
  rankwise run -n 2 --tag-output -- bash -c 'echo I am rank $RANKWISE_RANK'
  rankwise run -n 4 --timeout 10 train.py    a rank that waits longer than 10 s for the others fails
  rankwise run -n 4 --trace t.json train.py  then rankwise trace t.json shows which rank waited for which

The environment of each rank holds RANKWISE_RANK and RANKWISE_WORLD_SIZE, the variables that
torch.distributed reads (RANK, WORLD_SIZE, MASTER_ADDR, ...), and OMP_NUM_THREADS: unless it is set
already, the number of usable cores divided by the number of ranks. Rank 0 inherits standard input
unless that is a terminal. Ctrl-C reaches every rank; a second Ctrl-C kills them at once.
"""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise run` with these arguments; returns the exit code."""
    parser = _parser()
    own, program = _split(parser, list(argv))
    options = parser.parse_args(own)
    try:
        command = find_program(program)
        output = OutputMultiplexer(options.n, sys.stdout, sys.stderr, tag=options.tag_output)
        stdin = sys.stdin is not None and not sys.stdin.isatty()
        if options.backend is not None:
            _check_backend(options.backend)
        policy = TracePolicy.of(options.trace or Settings.read().trace)
        job = LocalJob(
            command,
            options.n,
            output,
            stdin=stdin,
            backend=options.backend,
            timeout=options.timeout,
            spans=policy.always is not None,
            fork=True,
        )
        return _run(job, output, policy)
    except BrokenPipeError:
        raise  # the reader of our output is gone, which cli.main handles
    except FileNotFoundError as error:
        return _refuse(str(error), NOT_FOUND)
    except (ValueError, OSError, MemoryError, RankwiseError) as error:
        return _refuse(str(error), 2)


def _check_backend(name: str) -> None:
    from rankwise.backends.registry import names  # reads the metadata of all installed packages

    if name not in names():
        raise ValueError(f"backend={name!r}: expected one of {', '.join(names())}")


def find_program(words: Sequence[str]) -> list[str]:
    """The command that runs PROGRAM with its arguments.

    Raises FileNotFoundError if there is no such program, PermissionError if it cannot be executed and
    ValueError if no program is named.
    """
    if words[:1] == ["--"]:
        return _find_command(words[1:])
    if words[:1] == ["-m"]:
        if len(words) < 2:
            raise ValueError("-m: expected the name of a module after it")
        if not _module_exists(words[1]):
            raise FileNotFoundError(f"module not found: {words[1]}")
        return [sys.executable, *words]
    if words and words[0].endswith((".py", ".tcl")):
        if not os.path.isfile(words[0]):
            raise FileNotFoundError(f"program not found: {words[0]} (no such file, seen from {os.getcwd()})")
        shell = ["-m", "rankwise", "tclsh"] if words[0].endswith(".tcl") else []
        return [sys.executable, *shell, *words]
    return _find_command(words)


def _find_command(words: Sequence[str]) -> list[str]:
    if not words:
        raise ValueError("nothing to run: expected a Python file, -m and a module, or a command")
    name = words[0]
    if name in ("python", "python3"):
        return [sys.executable, *words[1:]]
    for path in [name] if "/" in name else [os.path.join(folder, name) for folder in os.get_exec_path()]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return [path, *words[1:]]
    if not os.path.exists(name):
        where = f"no such file, seen from {os.getcwd()}" if "/" in name else "no such command on PATH"
        raise FileNotFoundError(f"program not found: {name} ({where})")
    if "/" in name or not os.access(name, os.X_OK):
        raise PermissionError(f"cannot run {name}: expected a file ending in .py or .tcl, or an executable one")
    raise FileNotFoundError(f"program not found: {name} (no such command on PATH; ./{name} is the file here)")


def _module_exists(name: str) -> bool:
    """Whether the module's package exists. A further check would import the package."""
    from importlib.util import find_spec

    before = list(sys.path)
    sys.path.insert(0, os.getcwd())  # where python -m looks first
    try:
        return find_spec(name.partition(".")[0]) is not None
    except ValueError:  # an empty name, or a module without a spec
        return False
    finally:
        sys.path[:] = before


def _parser() -> Parser:
    parser = Parser(
        prog="rankwise run",
        usage="rankwise run -n N [options] PROGRAM [arguments]",
        description=DESCRIPTION.format(longest=f"{LONGEST_LINE >> 20} MiB"),
        epilog=EPILOG,
    )
    parser.add_argument("-n", type=_count, required=True, metavar="N", help="how many ranks")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="how many seconds an operation may wait for other ranks (default: RANKWISE_TIMEOUT, else 300)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the last operations of each rank, and the spans of rankwise.trace, to FILE, which rankwise trace "
        "reads (default: RANKWISE_TRACE; without either, a failed job leaves a temporary file; none: never)",
    )
    parser.add_argument("--tag-output", action="store_true", help="begin each line with the rank that wrote it: [3] ")
    parser.add_argument("--backend", metavar="NAME", help="what moves the bytes (default: chosen by rankwise.init)")
    return parser


def _split(parser: Parser, words: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own arguments, and PROGRAM with everything after it."""
    valued = {word for action in parser._actions if action.nargs is None for word in action.option_strings}
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] not in ("-m", "--"):
        i += 2 if words[i] in valued else 1
    return words[:i], words[i:]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of ranks of at least 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not is_timeout(seconds):
        raise argparse.ArgumentTypeError(f"expected {TIMEOUT}, got {text!r}")
    return seconds


def _refuse(why: str, code: int) -> int:
    print(f"rankwise run: error: {why}", file=sys.stderr)
    return code


def _run(job: LocalJob, output: OutputMultiplexer, policy: TracePolicy) -> int:
    trace_line = None
    try:
        with _no_orphans(), _signals_passed_to(job), job:
            job.wait()
            trace_line = policy.trace_of(job)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if trace_line is not None:
        output.note(f"rankwise: {trace_line}")
    if job.interrupted is not None:
        output.note(f"rankwise: stopped by {signal_name(job.interrupted)}; {_ranks(job.survivors)} ended")
    elif job.culprit is not None:
        output.note(_blame(job, job.culprit))
    return job.exit_code


def _blame(job: LocalJob, rank: RankProcess) -> str:
    if job.hang:
        return f"rankwise: {job.hang.splitlines()[0]}; all {len(job.ranks)} ranks were ended"
    line = f"rankwise: rank {rank.number} (pid {rank.pid}) {rank.how}{rank.where}"
    if job.survivors:
        all_others = job.survivors == len(job.ranks) - 1
        line += f"; {'the other ' if all_others else ''}{_ranks(job.survivors)} ended"
    return line


def _ranks(count: int) -> str:
    return "1 rank was" if count == 1 else f"{count} ranks were"


@contextmanager
def _signals_passed_to(job: LocalJob) -> Iterator[None]:
    """Pass Ctrl-C, SIGTERM and SIGHUP on to the ranks; the second signal kills the ranks at once."""

    def handle(signum: int, frame: FrameType | None) -> None:
        if job.interrupted is None:
            job.interrupt(signum)
        else:
            job.kill()
            raise KeyboardInterrupt

    os.set_blocking(job.wake_writer, False)
    signal.set_wakeup_fd(job.wake_writer)
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        signals.append(signal.SIGHUP)
    before = {signum: signal.signal(signum, handle) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(-1)


@contextmanager
def _no_orphans() -> Iterator[None]:
    """Adopt the processes that the ranks start and abandon, daemons too, and kill those left at the end."""
    ours = _children()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # while it is ignored, the exit status of a child is lost
    adopt_orphans(True)
    try:
        yield
    finally:
        while left := _children() - ours:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        adopt_orphans(False)


def _children() -> set[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are no children, as is usual, so /proc need not be searched
        return set()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            if int(parent) == os.getpid():
                found.add(int(entry))
    return found
