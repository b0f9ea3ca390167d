"""`rankwise run`: run a program on n ranks of this host, alone or together with other hosts."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from rankwise._native import adopt_orphans
from rankwise.contract.errors import RankwiseError
from rankwise.launch.limits import MOST_RANKS, too_few_files
from rankwise.launch.local import LocalJob
from rankwise.launch.losses import Losses
from rankwise.launch.output import LONGEST_LINE, MOST_WAITING, OutputMultiplexer
from rankwise.launch.standard_input import ALL
from rankwise.system import files, proc
from rankwise.system.settings import Settings
from rankwise.tools.cli import Parser, option, refuse, seconds, whole
from rankwise.tools.trace_policy import TracePolicy

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:  # imported when there are several nodes
    from rankwise.launch.nodes import Nodes

FAILURES = (ValueError, OSError, MemoryError, RankwiseError)  # why the ranks could not be started
RENDEZVOUS_TIMEOUT = 600.0  # seconds, the same as torchrun's
NOT_FOUND = 127  # the exit code that shells give for a missing program
RANKS = whole("a number of ranks of at least 1", 1)
ONE_HOST = ("shm", "solo", "threads")  # backends that cannot be used between hosts

OTHERS = {  # options of torchrun and mpiexec that are not accepted here, and what to use instead
    "--master-addr": "--rendezvous HOST:PORT, which names the address and the port",
    "--master-port": "--rendezvous HOST:PORT, which names the address and the port",
    "--rdzv-backend": "--rendezvous HOST:PORT alone",
    "--rdzv-id": "--rendezvous HOST:PORT alone",
    "--standalone": "-n alone, which starts all ranks on this host",
    "--max-restarts": "--restarts N, which starts only the lost rank again",
    "--module": "-m and the name of the module",
    "--no-python": "-- before the command",
    "-np": "-n",
    "--np": "-n",
}

DESCRIPTION = """\
Run a program on N ranks of this host. Each rank is a process that calls rankwise.init() to learn
its rank. Output is printed in whole lines, and equal tracebacks of several ranks are printed once. A line
longer than {longest} is printed in pieces. The output of other ranks is held back until it ends; if that
exceeds {waiting}, the line is broken. When a rank fails, the others are ended (by one SIGTERM and, after
--grace, by SIGKILL), the command exits with the failed rank's exit code, and the last line names that rank
and what it was doing. When an operation times out, the last lines name the rank that did not come and show
its Python stack.

With --restarts or --keep-going the job goes on when a rank is lost: when it is killed, or exits with a
status other than 0. A line says at once which rank was lost, how and where, the last line repeats
it, and the exit code is 0 if all other ranks exit with 0. A rank that exits with 0 has finished. The
program must handle the loss: rankwise.elastic does all of it, group.restore() and group.shrink() one step each.

With --bind core, cache or numa each rank may use only one core (all its hardware threads), the CPUs of one
last-level cache, or one NUMA node. The ranks are spread evenly, in order, over those that this command may
use, so that neighbouring ranks are near each other; if there are more ranks than cores, neighbouring ranks
share one, and a line says so. rankwise status shows the CPUs of each rank. torchrun's --numa-binding node
and mpiexec's --bind-to core mean the same.

With --nnodes the job runs on several nodes, usually hosts. Run the command on each of them, with the same
program, --nnodes and --rendezvous, and its own --node-rank; -n is the number of ranks on that node.
The ranks are numbered in the order of the nodes. Each command prints the output of its own ranks, and
all of them end with the same last line and exit code. Ctrl-C on one node ends the job on all of them.
With --trace on node 0, or after a failure, node 0 writes one trace of the ranks of all nodes. With
--keep-going on all nodes, the job goes on after the loss of a rank or a node, but not of rank 0 or node 0.
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
  rankwise run -n 64 --bind core train.py    each rank stays on a core of its own
  rankwise run -n 4 --restarts 3 train.py    a lost rank is started again, alone, up to 3 times
  rankwise run -n 8 --min-ranks 6 train.py   the others go on until fewer than 6 are left

two hosts, 8 ranks on each; the second command is for the second host:
  rankwise run --nnodes 2 --node-rank 0 --rendezvous host-a:29500 -n 8 train.py
  rankwise run --nnodes 2 --node-rank 1 --rendezvous host-a:29500 -n 8 train.py

The environment of each rank holds RANKWISE_RANK and RANKWISE_WORLD_SIZE, the variables that
torch.distributed reads (RANK, WORLD_SIZE, MASTER_ADDR, ...), and OMP_NUM_THREADS: unless it is set
already, the number of usable cores divided by the number of ranks on this host. One rank inherits
standard input unless that is a terminal. Ctrl-C, SIGTERM and SIGHUP are passed on to every rank, which
then has --grace seconds to end; a second signal kills all ranks at once. SIGUSR1 and SIGUSR2 are passed on
to every rank of this host, and the job goes on. By default they kill a rank that has no handler for them.
A rank that is started again has the same number, environment and standard streams; RANKWISE_RESTART
says 1, 2, ...
"""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise run` with these arguments; returns the exit code."""
    parser = _parser()
    own, program = _split(parser, list(argv))
    options = parser.parse_args(own)
    if options.keep_going and not options.min_ranks:
        options.min_ranks = 1
    try:
        command = find_program(program)
        settings = Settings.read()
        if options.mpi4py:
            _find_mpi4py()
        if options.registered:
            os.environ["RANKWISE_REGISTERED"] = "1"
        alone = options.n == 1 and options.nnodes in (None, 1)
        output = OutputMultiplexer(
            sys.stdout, sys.stderr, alone=alone, tag=options.tag_output, folder=_folder(options.output_dir)
        )
        stdin = options.stdin if sys.stdin is not None and not sys.stdin.isatty() else None
        if options.backend is not None:
            _check_backend(options.backend)
        _check_nodes(options)
        policy = TracePolicy.of(options.trace or settings.trace)
        places = None if options.bind == "none" else _places(options.bind, options.n, output)

        def run(nodes: Nodes | None) -> int:
            size = options.n if nodes is None else nodes.world_size
            if isinstance(options.stdin, int) and options.stdin >= size:
                raise ValueError(f"--stdin {options.stdin}: expected a rank, 0 to {size - 1}, all, or none")
            losses = Losses(
                size,
                restarts=options.restarts,
                keep_going=options.min_ranks is not None,
                min_ranks=options.min_ranks or 1,
            )
            job = LocalJob(
                command,
                options.n,
                output,
                stdin=stdin,
                backend=options.backend,
                timeout=options.timeout,
                grace=options.grace,
                spans=policy.always is not None,
                places=places,
                losses=losses,
                nodes=nodes,
                fork=True,
            )
            return _run(job, output, policy)

        return run(None) if options.nnodes in (None, 1) else _on_nodes(run, options, output, policy)
    except BrokenPipeError:
        raise  # the reader of our output is gone, which cli.main handles
    except FileNotFoundError as error:
        return refuse("run", str(error), NOT_FOUND)
    except FAILURES as error:
        full = isinstance(error, OSError) and error.errno == errno.EMFILE  # before the first rank was started
        return refuse("run", too_few_files(options.n, 0, 3) if full else str(error), 2)


def _find_mpi4py() -> None:
    """Let the ranks' `import mpi4py` find rankwise's."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [os.path.join(package, "frontends", "mpi4py", "substitute"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))


def _check_backend(name: str) -> None:
    from rankwise.backends.registry import names  # reads the metadata of all installed packages

    if name not in names():
        raise ValueError(f"backend={name!r}: expected one of {', '.join(names())}")


def _places(bind: str, n: int, output: OutputMultiplexer) -> list[frozenset[int]]:
    """The CPUs of each rank."""
    from rankwise.launch import binding  # few jobs need it

    places = binding.places(bind, n)
    if line := binding.remark(bind, places):
        output.note(f"rankwise: {line}")
    return places


def _check_nodes(options: argparse.Namespace) -> None:
    """Raises ValueError for options that do not fit the number of nodes."""
    nnodes, node = options.nnodes, options.node_rank
    given = {"--nnodes": nnodes, "--node-rank": node, "--rendezvous": options.rendezvous}
    missing = [name for name, value in given.items() if value is None]
    if nnodes != 1 and 0 < len(missing) < len(given):
        name = next(name for name, value in given.items() if value is not None)
        word = ":".join(map(str, given[name])) if name == "--rendezvous" else given[name]
        raise ValueError(f"{name} {word}: expected {' and '.join(missing)} as well")
    if node is not None and node >= nnodes:
        expected = "0" if nnodes == 1 else f"0 to {nnodes - 1}"
        raise ValueError(f"--node-rank {node}: expected {expected}, because of --nnodes {nnodes}")
    if nnodes in (None, 1):
        return
    if options.restarts:
        raise ValueError(
            f"--restarts with --nnodes {nnodes}: a rank can be started again only in a job on one host, where it meets "
            "the others in shared memory; use --keep-going, or write checkpoints to disk and start the whole job again"
        )
    if options.backend in ONE_HOST:
        expected = "expected one that reaches other hosts, such as hierarchical or gloo"
        raise ValueError(f"backend={options.backend!r} with --nnodes {nnodes}: {expected}")


def _on_nodes(
    run: Callable[[Nodes], int], options: argparse.Namespace, output: OutputMultiplexer, policy: TracePolicy
) -> int:
    """Meet the other launchers, and run this node's ranks."""
    from rankwise.launch.node_meeting import meet  # a job on one host does without it

    def note(line: str) -> None:
        output.note(f"rankwise: {line}")

    try:
        nodes = meet(
            options.rendezvous,
            options.nnodes,
            options.node_rank,
            options.n,
            options.rendezvous_timeout,
            note,
            min_ranks=options.min_ranks,
            spans=policy.always is not None,
        )
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    with nodes:
        nodes.collects = policy.wants
        try:
            return run(nodes)
        except FAILURES as error:
            nodes.fail(str(error))
            raise


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
    return Parser(
        prog="rankwise run",
        usage="rankwise run -n N [options] PROGRAM [arguments]",
        description=DESCRIPTION.format(longest=f"{LONGEST_LINE >> 20} MiB", waiting=f"{MOST_WAITING >> 20} MiB"),
        epilog=EPILOG,
        options=(
            option(
                "-n",
                "--nproc-per-node",
                dest="n",
                type=_local_count,
                required=True,
                metavar="N",
                help="how many ranks to start on this host",
            ),
            option(
                "--nnodes",
                type=whole("a number of nodes of at least 1", 1),
                metavar="N",
                help="how many nodes the job has (default: 1)",
            ),
            option(
                "--node-rank",
                type=whole("the number of this node, from 0 on"),
                metavar="R",
                help="this node's number: 0 to N - 1, N being --nnodes",
            ),
            option(
                "--rendezvous",
                "--rdzv-endpoint",
                type=_address,
                metavar="HOST:PORT",
                help="where the launchers meet, the same on all nodes: an address of node 0's host and a free port",
            ),
            option(
                "--rendezvous-timeout",
                type=seconds,
                default=RENDEZVOUS_TIMEOUT,
                metavar="S",
                help="how many seconds a launcher waits for the others (default: 600)",
            ),
            option(
                "--timeout",
                type=seconds,
                metavar="S",
                help="how many seconds an operation may wait for other ranks (default: RANKWISE_TIMEOUT, else 300)",
            ),
            option(
                "--grace",
                type=seconds,
                metavar="S",
                help="how many seconds a rank has from the signal that ends it to SIGKILL (default: RANKWISE_GRACE, "
                "else 10)",
            ),
            option(
                "--trace",
                metavar="FILE",
                help="write the last operations of each rank, and the spans of rankwise.trace, to FILE, which rankwise "
                "trace reads (default: RANKWISE_TRACE; without either, a failed job leaves a temporary file; none: "
                "never)",
            ),
            option(
                "--restarts",
                type=whole("a number of restarts of at least 0"),
                default=0,
                metavar="N",
                help="start a lost rank again, without the others, up to N times; in jobs on one host only (default: "
                "0, the job ends)",
            ),
            option(
                "--keep-going",
                action="store_true",
                help="let the other ranks go on when a rank is lost and not started again",
            ),
            option(
                "--min-ranks",
                type=RANKS,
                metavar="M",
                help="as --keep-going, but end the job when fewer than M ranks are left",
            ),
            option(
                "--bind",
                "--bind-to",
                "--numa-binding",
                type=_binding,
                default="none",
                metavar="WHERE",
                help="core: each rank may use one core only; cache: the CPUs of one last-level cache; numa: one NUMA "
                "node (default: none, the kernel chooses)",
            ),
            option(
                "--mpi4py",
                action="store_true",
                help="make the program's `import mpi4py` find rankwise's, without MPI",
            ),
            option(
                "--registered",
                action="store_true",
                help="after rankwise.init(), let NumPy allocate every array of at least a page in registered memory, "
                "on which collectives save copies (default: RANKWISE_REGISTERED)",
            ),
            option(
                "--output-dir",
                metavar="DIR",
                help="also write what each rank prints to a file of its own, DIR/rank-3.txt for rank 3; DIR is made if "
                "need be",
            ),
            option(
                "--stdin",
                type=_reader,
                default=0,
                metavar="RANK|all|none",
                help="which rank inherits its launcher's standard input, unless that is a terminal; all: each rank of "
                "this host gets a copy (default: 0)",
            ),
            option("--tag-output", action="store_true", help="begin each line with the rank that wrote it: [3] "),
            option(
                "--backend",
                metavar="NAME",
                help="which implementation of the operations to use (default: chosen by rankwise.init)",
            ),
        ),
    )


def _split(parser: Parser, words: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own arguments, and PROGRAM with its arguments. As in torchrun, _ in an option's name means -."""
    valued = {word for action in parser._actions if action.nargs is None for word in action.option_strings}
    own: list[str] = []
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] not in ("-m", "--"):
        name, equals, value = words[i].partition("=")
        name = name.replace("_", "-")
        if name in OTHERS:
            parser.error(f"{name}: expected {OTHERS[name]}")
        following = words[i + 1 : i + 2] if not equals and name in valued else []
        own += [name + equals + value, *following]
        i += 1 + len(following)
    return own, words[i:]


def _reader(text: str) -> int | str | None:
    if text in (ALL, "none"):
        return ALL if text == ALL else None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a rank, all, or none, got {text!r}")
    return int(text)


def _folder(name: str | None) -> str | None:
    """The folder --output-dir, which is made; ValueError if it cannot be. Files of an earlier job are emptied."""
    if name is None:
        return None
    try:
        os.makedirs(name, exist_ok=True)
        for file in os.listdir(name):
            if file.startswith("rank-") and file.endswith(".txt"):
                open(os.path.join(name, file), "w", opener=files.no_link).close()
    except OSError as error:
        raise ValueError(f"--output-dir {name}: expected a folder to write to: {error}") from None
    return name


def _local_count(text: str) -> int:
    count = RANKS(text)
    if count > MOST_RANKS:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_RANKS}, as many as one host can have, got {text!r}")
    return count


def _binding(text: str) -> str:
    where = "numa" if text == "node" else text  # torchrun's word
    if where not in ("core", "cache", "numa", "none"):
        raise argparse.ArgumentTypeError(f"expected core, cache, numa or none, got {text!r}")
    return where


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, an address of node 0's host, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _run(job: LocalJob, output: OutputMultiplexer, policy: TracePolicy) -> int:
    trace_line = None
    try:
        with _no_orphans(), _signals_passed_to(job), job:
            job.wait()
            trace_line = policy.trace_of(job)
    except KeyboardInterrupt:
        return 128 + (job.interrupted or signal.SIGINT)
    if trace_line is not None:
        output.note(f"rankwise: {trace_line}")
    if line := job.ending.line:
        output.note(f"rankwise: {line}")
    return job.ending.code


@contextmanager
def _signals_passed_to(job: LocalJob) -> Iterator[None]:
    """End the ranks by the Ctrl-C, SIGTERM or SIGHUP that comes, and kill them at once by the second.

    SIGUSR1 and SIGUSR2, by which schedulers announce that they will end a job, are the program's business.
    """

    def handle(signum: int, frame: FrameType | None) -> None:
        if job.interrupted is None:
            job.interrupt(signum)
        else:
            job.kill()
            raise KeyboardInterrupt

    def pass_on(signum: int, frame: FrameType | None) -> None:
        job.pass_on(signum)

    os.set_blocking(job.wake_writer, False)
    signal.set_wakeup_fd(job.wake_writer)
    handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM), handle)
    handlers |= {
        signum: handler
        for signum, handler in ((signal.SIGHUP, handle), (signal.SIGUSR1, pass_on), (signal.SIGUSR2, pass_on))
        if signal.getsignal(signum) is not signal.SIG_IGN  # as SIGHUP is under nohup
    }
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(-1)


@contextmanager
def _no_orphans() -> Iterator[None]:
    """Adopt the processes that the ranks start and abandon, daemons too, and kill those left at the end."""
    known = _children()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # while it is ignored, the exit status of a child is lost
    adopt_orphans(True)
    try:
        yield
    finally:
        while left := _children() - known:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        adopt_orphans(False)


def _children() -> set[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are no children, as is usual, so /proc need not be searched
        return set()
    children = set()
    for pid in proc.pids():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
            if int(proc.stat(pid)[proc.PARENT]) == os.getpid():
                children.add(pid)
    return children
