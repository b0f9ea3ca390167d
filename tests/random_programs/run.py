"""Random programs on the backends other than nccl and as mpi4py programs, for a given time.

    PYTHONPATH=tests python -m random_programs.run [WORLD...] [--minutes M]
        [--seed S [-n N] [--steps 3,5,8]] [--shorten]

WORLD is where programs run, a backend or a launcher; by default, all of them. Without --seed, programs are drawn for M
minutes, divided among the worlds. --seed runs one program, -n on so many ranks, --steps only these steps of it.
--shorten leaves out steps as long as the program still fails. --tries says how often a program is run, for a failure
that does not come each time.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mpi_launchers
from backends import hosts_in_threads
from leftovers import MARK, shared_memory_files, started_processes
from random_programs.generator import Style, draw
from random_programs.play import play
from random_programs.program import Collective, How, Make, Program, Shift
from rankwise.testing import RanksFailed, close_pools, run_ranks

HERE = Path(__file__).parent
LIMIT = 120.0  # seconds that one program may take
GRACE = 3.0  # seconds for what is ending to be gone
RUN = [sys.executable, "-m", "rankwise", "run"]
DOCUMENTED = ("PeerLostError", "no group")
"""What may come of a step after a rank was lost, or has given up."""


class Failed(Exception):
    """program: which has failed."""

    def __init__(self, program: Program, text: str) -> None:
        super().__init__(text)
        self.program = program


@dataclass(frozen=True)
class World:
    """Where programs run. together: how many at one start; they have the same number of ranks."""

    style: Style
    run: Callable[[list[Program]], None]
    together: int = 1


# ---- ranks of this process, or kept ones ----


def on_ranks(backend: str, programs: list[Program]) -> None:
    for program in programs:
        opener: Any = backend
        if backend == "hosts":
            opener = hosts_in_threads.opener([rank * 2 // max(2, program.n) for rank in range(program.n)])
        try:
            run_ranks(partial(play, program=program), program.n, backend=opener, timeout=LIMIT)
        except RanksFailed as error:
            raise Failed(program, str(error)) from None


# ---- ranks of a launcher ----


def reports(folder: Path, n: int) -> list[list[dict[str, Any]]]:
    """What each rank has said of the programs that it has ended."""
    files = [folder / f"rank-{rank}" for rank in range(n)]
    return [[json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [] for file in files]


def launched(command: Callable[[int, str], list[str]], environ: dict[str, str], programs: list[Program]) -> None:
    """Without faults: every rank must say of every program that it was right."""
    n = programs[0].n
    with folder_of(programs) as folder:
        text = start(command(n, str(folder)), environ, LIMIT + 2 * len(programs))
        found = reports(folder, n)
        for number, program in enumerate(programs):
            mine = [lines[number] if number < len(lines) else {"failed": "it has not ended"} for lines in found]
            if wrong := [f"rank {rank}: {line['failed']}" for rank, line in enumerate(mine) if "failed" in line]:
                raise Failed(program, "\n".join([*wrong, text]))


def faulty(backend: str, programs: list[Program]) -> None:
    """One program with a fault."""
    [program] = programs
    fault = program.fault
    assert fault is not None
    command = [*RUN, "-n", str(program.n), "--keep-going", "--trace", "none", str(HERE / "play.py"), backend]
    with folder_of(programs) as folder, nothing_left(program):
        text = start([*command, str(folder)], {}, LIMIT)
        found = [lines[0] if lines else {} for lines in reports(folder, program.n)]
        if wrong := judged(program, found):
            raise Failed(program, f"{wrong}\n{text}")


def judged(program: Program, found: list[dict[str, Any]]) -> str:
    """What is wrong with the ranks' reports after a fault, or nothing.

    Of the steps of a group without the victim, which all of its ranks have made, every result must be right.
    """
    fault = program.fault
    assert fault is not None
    gone = fault.kind in ("kill", "interrupt")
    for rank, report in enumerate(found):
        if gone and rank == fault.rank:
            if fault.kind == "kill" and report:
                return f"rank {rank} was not killed: {report}"
            ignored = report.get("errors") == {}  # raised where nobody can catch it
            if fault.kind == "interrupt" and not (report.get("failed", "").startswith("Interrupted") or ignored):
                return f"rank {rank} was not interrupted: {report}"
        elif "errors" not in report:
            return f"rank {rank} has not ended well: {report}"
        elif wrong := [text for text in report["errors"].values() if not text.startswith(DOCUMENTED)]:
            return f"rank {rank}: {wrong[0]}"
        elif fault.kind == "stop" and report["errors"]:
            return f"rank {rank}: {report['errors']}"
    parts, made = program.parts(), {step.number: step for step in program.steps() if isinstance(step, Make)}
    for step in program.steps():
        for part in parts[step.group]:
            if fault.rank in part or any(step.number == each for each in made):
                continue
            errors = {rank: found[rank]["errors"] for rank in part}
            maker = made.get(step.group)
            if maker is None or any(str(maker.number) in each for each in errors.values()):
                continue
            for rank, each in errors.items():
                if str(step.number) in each:
                    return f"rank {rank} of {part}, without the victim, step {step.number}: {each[str(step.number)]}"
    return ""


@contextmanager
def folder_of(programs: list[Program]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "programs").write_bytes(pickle.dumps(programs))
        yield Path(name)


def start(command: list[str], environ: dict[str, str], limit: float) -> str:
    """Run a command to its end. Returns what it says; after too long a time, the ranks say where they are."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "RANKWISE_TRACE": "none", **environ}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        job = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            job.wait(limit)
        except subprocess.TimeoutExpired:
            for pid, text in started_processes().items():
                if "play.py" in text and "random_programs.run" not in text:
                    os.kill(pid, signal.SIGABRT)
            try:
                job.wait(10)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
        output.seek(0)
        return f"{shlex.join(command)}: exit status {job.returncode}\n{output.read()[-8000:]}"


@contextmanager
def nothing_left(program: Program) -> Iterator[None]:
    files, processes = shared_memory_files(), started_processes()
    yield
    end = time.monotonic() + GRACE
    while True:
        new = {pid: text for pid, text in started_processes().items() if pid not in processes}
        left = [file for file in shared_memory_files() - files if "rankwise" in file]
        if not new and not left:
            return
        if time.monotonic() > end:
            raise Failed(program, f"left behind: {new}, {left}")
        time.sleep(0.05)


def mpiexec(*arguments: str) -> Callable[[int, str], list[str]]:
    folder = mpi_launchers.ROOT / "build" / "mpi" / "mpich" / "bin"
    return lambda n, name: [str(folder / "mpiexec"), "-n", str(n), str(folder / "python"), *arguments, name]


PLAY, MPI_PLAY = str(HERE / "play.py"), str(HERE / "mpi_play.py")
ON_RANKWISE = lambda n, name: [*RUN, "-n", str(n), "--mpi4py", MPI_PLAY, name]  # noqa: E731
SLOW = Style(slow_receives=True)
FAULTS = ("kill", "stop", "interrupt", "abort")

WORLDS = {
    "threads": World(Style(), partial(on_ranks, "threads")),
    "shm": World(Style(), partial(on_ranks, "shm")),
    "hosts": World(SLOW, partial(on_ranks, "hosts")),
    "gloo": World(SLOW, partial(on_ranks, "gloo")),
    "mpi": World(SLOW, partial(launched, mpiexec(PLAY, "mpi"), mpi_launchers.ENVIRONMENT), together=20),
    "mpich": World(Style(mpi=True), partial(launched, mpiexec(MPI_PLAY), mpi_launchers.ENVIRONMENT), together=30),
    "mpi4py": World(Style(mpi=True), partial(launched, ON_RANKWISE, {}), together=30),
    "faults": World(Style(faults=FAULTS, steps=25), partial(faulty, "shm")),
    "gloo-faults": World(Style(slow_receives=True, faults=FAULTS, steps=25), partial(faulty, "gloo")),
}


def run_for(name: str, seconds: float, first: int) -> tuple[int, Failed | None]:
    """Run programs from this seed on. Returns how many were run, and the failure, if any, which ends it."""
    world, end, seed = WORLDS[name], time.monotonic() + seconds, first
    while time.monotonic() < end:
        n = draw(seed, world.style).n if world.together > 1 else None
        programs = [draw(each, world.style, n) for each in range(seed, seed + world.together)]
        try:
            world.run(programs)
        except Failed as failed:
            return seed - first, failed
        seed += world.together
    return seed - first, None


def shortened(world: World, program: Program, tries: int) -> Program:
    """Leave out steps, first many at a time, and make calls plain, as long as the program still fails."""

    def fails(shorter: Program) -> bool:
        try:
            for _ in range(tries):
                world.run([shorter])
        except Failed:
            return True
        return False

    size = sum(map(len, program.threads)) // 2
    while size:
        numbers = [step.number for step in program.steps()]
        for at in range(0, len(numbers), size):
            dropped = set(numbers[at : at + size])
            shorter = program.only({step.number for step in program.steps()} - dropped)
            if shorter.threads != program.threads and fails(shorter):
                program = shorter
                print(f"{sum(map(len, program.threads))} steps are left", file=sys.stderr, flush=True)
        size //= 2
    for step in program.steps():
        plain = replace(step, hows=(How(),) * program.n)
        if isinstance(step, Collective | Shift) and plain != step:
            threads = tuple(tuple(plain if each is step else each for each in steps) for steps in program.threads)
            if fails(simpler := replace(program, threads=threads)):
                program = simpler
    return program


def repeats(name: str, program: Program) -> str:
    steps = ",".join(str(step.number) for step in program.steps())
    return f"PYTHONPATH=tests python -m random_programs.run {name} --seed {program.seed} -n {program.n} --steps {steps}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", choices=[[], *WORLDS], default=[], help=f"some of {', '.join(WORLDS)}")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("-n", type=int)
    parser.add_argument("--steps", type=lambda text: {int(word) for word in text.split(",")})
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--tries", type=int, default=1)
    options = parser.parse_args()
    os.environ.update([MARK.split("=")])
    names, failures = options.worlds or list(WORLDS), 0
    for name in names:
        world = WORLDS[name]
        if options.seed is None:
            first = int(time.time() * 1000) % 1_000_000_000
            count, failed = run_for(name, 60 * options.minutes / len(names), first)
            print(f"{name}: {count} programs from seed {first} on were right", flush=True)
        else:
            program, failed = draw(options.seed, world.style, options.n), None
            program = program if options.steps is None else program.only(options.steps)
            print(program, flush=True)
            try:
                for _ in range(options.tries):
                    world.run([program])
            except Failed as error:
                failed = error
        if failed is not None:
            failures += 1
            program = failed.program
            print(f"{program}\nfailed on {name}: {failed}\n{repeats(name, program)}", flush=True)
            if options.shorten:
                program = shortened(world, program, options.tries)
                print(f"still fails:\n{program}\n{program!r}\n{repeats(name, program)}", flush=True)
        close_pools()
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
