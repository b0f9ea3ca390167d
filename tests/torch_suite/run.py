"""Runs torch's own suite of its distributed backends on rankwise and on gloo, and compares.

    python tests/torch_suite/run.py [--ranks 2 3 4] [--tests SUBSTRING] [--report FILE]

The suite is torch.testing._internal.distributed.distributed_test, which torch ships. A set of worker
processes runs its tests one after the other, each with a process group of its own; a set in which a
test failed or did not end is replaced. Prints passed, failed and skipped for both backends, and every
test that gloo passes and rankwise does not; ends with status 1 where one of these is not explained in
differences.toml. It runs on the torch of the Python that runs it, which needs expecttest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BACKENDS = ("rankwise", "gloo")
LIMIT = 120.0  # seconds for one test
START = 300.0  # seconds for the ranks to import torch


@dataclass
class Outcome:
    """What became of a test. result: passed, failed or skipped; why: each rank's words, where it has some."""

    result: str
    why: str
    seconds: float


class Workers:
    """The ranks that run the tests of one backend and world size."""

    def __init__(self, backend: str, ranks: int) -> None:
        self.backend, self.n = backend, ranks
        self.folder = tempfile.TemporaryDirectory(prefix="torch-suite-")
        for name in ("barrier", "test_dir", "init_dir"):
            Path(self.folder.name, name).mkdir()
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        environ = os.environ | {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(self.n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TEMP_DIR": self.folder.name,
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        with open(os.path.join(self.folder.name, "log"), "a") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, str(HERE / "rank.py"), str(rank), str(self.n), self.backend],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environ,
                    start_new_session=True,
                )
                for rank in range(self.n)
            ]
        if self._answers(START) is None:
            raise SystemExit(f"the ranks of {self.backend} did not start:\n{Path(self.folder.name, 'log').read_text()}")

    def run(self, test: str) -> Outcome:
        if not self.processes:
            self.start()
        for folder in ("barrier", "test_dir"):
            for file in Path(self.folder.name, folder).iterdir():
                file.unlink()
        meeting = Path(self.folder.name, "init_dir", f"{test}-{time.monotonic_ns()}")
        begin = time.monotonic()
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{test} {meeting}\n")
                process.stdin.flush()
        answers = self._answers(LIMIT)
        seconds = time.monotonic() - begin
        meeting.unlink(missing_ok=True)
        if answers is None:
            self.stop()
            return Outcome("failed", f"did not end within {LIMIT:g} s, or a rank died", seconds)
        results = [json.loads(line) for line in answers]
        outcomes = {result["outcome"] for result in results}
        result = next(word for word in ("failed", "skipped", "passed") if word in outcomes)
        why = "\n".join(
            f"rank {rank}: {r['why']}" for rank, r in enumerate(results) if r["outcome"] == result and r["why"]
        )
        if result == "failed":
            self.stop()
        return Outcome(result, why, seconds)

    def _answers(self, limit: float) -> list[str] | None:
        """A line of every rank; None where one does not come, or its process ended."""
        lines: dict[int, str] = {}
        end = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(lines) < self.n:
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    return None
                for key, _ in ready:
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    if not line:
                        return None
                    lines[key.data] = line
                    selector.unregister(key.fileobj)
        return [lines[rank] for rank in range(self.n)]

    def stop(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]
        self.processes = []

    def close(self) -> None:
        self.stop()
        self.folder.cleanup()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def tests() -> list[str]:
    code = (
        "import os; os.environ.update(BACKEND='gloo', WORLD_SIZE='2')\n"
        "from torch.testing._internal.distributed.distributed_test import DistributedTest as T\n"
        "print(*[n for n in dir(T._DistTestBase) if n.startswith('test_')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def explained() -> dict[str, str]:
    """From differences.toml: why a test that gloo passes does not on rankwise, by name."""
    found = {}
    for line in (HERE / "differences.toml").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r'(test_\w+) = "(.*)"', line.strip()):
            found[match[1]] = match[2]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--tests", default="", help="only tests whose name contains this")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    parser.add_argument("--report", type=Path, help="a JSON file for all outcomes")
    args = parser.parse_args()

    names = [name for name in tests() if args.tests in name]
    outcomes: dict[int, dict[str, dict[str, Outcome]]] = {}
    for n in args.ranks:
        outcomes[n] = {}
        for backend in args.backends:
            workers = Workers(backend, n)
            found = outcomes[n][backend] = {}
            try:
                for number, name in enumerate(names, 1):
                    found[name] = workers.run(name)
                    result = found[name]
                    print(
                        f"{backend} {n} [{number}/{len(names)}] {name}: {result.result} {result.seconds:.1f}s",
                        flush=True,
                    )
                    if result.result == "failed":
                        print(result.why, flush=True)
            finally:
                workers.close()
            if args.report:
                plain = {
                    str(n): {b: {t: vars(o) for t, o in tests.items()} for b, tests in by.items()}
                    for n, by in outcomes.items()
                }
                args.report.write_text(json.dumps(plain, indent=1))
    return report(outcomes)


def report(outcomes: dict[int, dict[str, dict[str, Outcome]]]) -> int:
    print("\nranks  backend    passed  failed  skipped")
    for n, by_backend in outcomes.items():
        for backend, found in by_backend.items():
            count: Counter[str] = Counter(outcome.result for outcome in found.values())
            print(f"{n:>5}  {backend:<9}  {count['passed']:>6}  {count['failed']:>6}  {count['skipped']:>7}")
    known = explained()
    unexplained: list[str] = []
    for n, by_backend in outcomes.items():
        if set(by_backend) != set(BACKENDS):
            continue
        for name, theirs in by_backend["gloo"].items():
            ours = by_backend["rankwise"][name]
            if theirs.result == "passed" and ours.result != "passed":
                print(f"{n} ranks, {name}: gloo passed, rankwise {ours.result}: {known.get(name, 'NOT EXPLAINED')}")
                if name not in known:
                    unexplained.append(name)
            if ours.result == "passed" and theirs.result == "failed":
                print(f"{n} ranks, {name}: gloo failed, rankwise passed")
    print(f"{len(unexplained)} differences without an explanation in {HERE.name}/differences.toml")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
