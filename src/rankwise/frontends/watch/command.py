"""`python -m rankwise.watch [options] program.py [args]`: run a program whose calls are recorded and compared."""

from __future__ import annotations

import argparse
import io
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankwise import _native, _watch
from rankwise.contract.job import Job
from rankwise.frontends.watch.operations import ALL, REDUCTIONS
from rankwise.frontends.watch.trace import write_at_end
from rankwise.launch.environment import find_job
from rankwise.system.imports import after_import
from rankwise.system.settings import Settings

TIMEOUT = 60.0

DESCRIPTION = """\
Run an unchanged mpi4py or torch.distributed program on the library that it uses, and record each of its calls. If the
calls of the ranks of a host do not match, the job ends with a report of each rank's call and line; if a call lasts too
long, a roll call shows where each rank is. `rankwise status` shows the running job.
"""

EPILOG = """\
examples:
  mpiexec -n 4 python -m rankwise.watch program.py
  mpiexec -n 4 python -m rankwise.watch --timeout 10 --abort -m package.module
  torchrun --nproc-per-node 4 -m rankwise.watch train.py
"""


def main(argv: Sequence[str]) -> None:
    """Run the program that the arguments name, as `python` would."""
    options = _parse(argv)
    timeout = options.timeout
    if timeout is None:
        settings = Settings.read()
        timeout = settings.timeout if settings.timeout_given else TIMEOUT
    _start(timeout, options.abort, options.trace)
    package = "rankwise.frontends.watch"
    after_import({"mpi4py.MPI": f"{package}.mpi", "torch.distributed.distributed_c10d": f"{package}.torch"})
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # nothing is lost if the job is ended
    sys.argv = [options.program, *options.arguments]
    try:
        if options.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(options.program)))
            runpy.run_path(options.program, run_name="__main__")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # whatever the program raises ends it
        # The program's own frames, without those that started it.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rankwise.watch",
        usage="python -m rankwise.watch [options] [-m] program [arguments]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help=f"after which a call lasts too long (default: RANKWISE_TIMEOUT, or {TIMEOUT:.0f})",
    )
    parser.add_argument("--abort", action="store_true", help="end the job after the roll call of a call that does")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the last operations, for `rankwise trace FILE`"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument("program", help="the program's file, or the module's name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's arguments")
    return parser.parse_args(argv)


# ---- the ranks of a host meet, and each begins to record its calls ----

MEETING = 60.0  # seconds that the ranks of a host may take to start


def _start(timeout: float, abort: bool, trace: Path | None = None) -> None:
    """Begin to record this process's calls, and to compare them with those of the host's other ranks.

    timeout: seconds after which a call lasts too long. abort: whether such a call ends the job. trace: the file for the
    trace of rank 0's host.

    Raises:
        ValueError: the launcher does not say how many ranks this host has.
        OSError: the trace cannot be written.
    """
    job = find_job(os.environ, Settings.read())
    segment, local = _segment(job)
    _watch.start(
        segment=segment,
        rank=local,
        number=job.rank,
        world_size=job.world_size,
        operations=[(each.name, each.traced, each.message, each.root[1] if each.root else "") for each in ALL],
        reductions=list(REDUCTIONS),
        timeout=timeout,
        abort=abort,
    )
    if trace is not None and job.rank == 0:
        write_at_end(segment, trace)


def _segment(job: Job) -> tuple[_native.Segment, int]:
    """The memory of this host's ranks, and this rank's number in it."""
    if job.segment_fd is not None:
        return _native.Segment.attach(job.segment_fd), job.local_rank or 0
    if job.local_rank is None or job.local_world_size is None:
        if not job.one_host:
            raise ValueError(
                f"{job.launcher} does not say which of the {job.world_size} ranks run on this host: start the program "
                "with mpiexec, torchrun, or srun --ntasks-per-node"
            )
        job = replace(job, local_rank=job.rank, local_world_size=job.world_size)
    if job.local_world_size == 1:
        return _native.Segment.create(1), 0
    from rankwise.backends.native import rendezvous  # slow to import, with its sockets and hashes

    local = replace(job, id=f"watch of {job.id}", rank=job.local_rank or 0, world_size=job.local_world_size or 1)
    return rendezvous.meet(local, MEETING), local.rank
