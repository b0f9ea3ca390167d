"""Runs fuzzers guided by coverage, several at a time, and prints how much each has seen.

    python tests/fuzz/run.py [--minutes M] [--seed S] [--keep] [NAME...]

The fuzzers of native/tests/fuzz are built with clang's libFuzzer, AddressSanitizer and UBSan in build/fuzz; those of
code in Python (targets.py) run under atheris. Each starts from its corpus in the repository and from what earlier runs
have found, in build/fuzz/found. An input that crashes one is written to build/fuzz/failed; once the cause is mended, it
belongs in the corpus, which the ordinary tests read.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz"
NATIVE = ROOT / "native/tests/fuzz"
HERE = Path(__file__).resolve().parent
JOBS = len(os.sched_getaffinity(0))
LEAST = 5  # seconds that a fuzzer runs
LONGEST = 512  # bytes of an input
NOT_TESTED = "not tested: fuzzing guided by coverage"
OPTIONS = ("-len_control=0", f"-max_len={LONGEST}", "-timeout=30", "-rss_limit_mb=4000", "-print_final_stats=1")


CORE = [source.stem for source in sorted(NATIVE.glob("*_fuzz.cpp"))]
PYTHON = re.findall(r"\w+", re.findall(r"for target in \((.*?)\)", (HERE / "targets.py").read_text(), re.DOTALL)[0])


@dataclass(frozen=True)
class Fuzzer:
    """A program of libFuzzer. corpus: its inputs in the repository. also: others from which it starts."""

    name: str
    command: tuple[str, ...]
    corpus: Path
    also: tuple[str, ...] = ()

    @property
    def found(self) -> Path:
        return BUILD / "found" / self.name

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *options],
            cwd=ROOT,
            env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


@dataclass(frozen=True)
class Outcome:
    fuzzer: Fuzzer
    passed: bool
    log: str

    def __str__(self) -> str:
        def last(pattern: str) -> str:
            return str((re.findall(pattern, self.log) or ["?"])[-1])

        numbers = last(r"number_of_executed_units: +(\d+)"), last(r" cov: (\d+)"), last(r" corp: (\d+)")
        return f"{self.fuzzer.name:<16} {numbers[0]:>10} {numbers[1]:>8} {numbers[2]:>7}   " + (
            "passed" if self.passed else "FAILED"
        )


def clang() -> str:
    """A clang++ that has libFuzzer; "" if there is none."""
    names = ["clang++", *(f"clang++-{version}" for version in range(25, 13, -1))]
    for compiler in filter(None, map(shutil.which, names)):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "empty.cpp")
            source.write_text(
                'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
            )
            command = [compiler, "-fsanitize=fuzzer,address,undefined", str(source), "-o", f"{folder}/empty"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return compiler
    return ""


def native(names: list[str]) -> list[Fuzzer]:
    """The native fuzzers of these names, or all. They are built."""
    wanted = [name for name in CORE if not names or name in names]
    if not wanted:
        return []
    if not (compiler := clang()):
        print(f"{NOT_TESTED} of the core: there is no clang with libFuzzer; apt install clang")
        return []
    options = ["-DRANKWISE_FUZZ=ON", "-DRANKWISE_PYTHON=OFF", f"-DCMAKE_CXX_COMPILER={compiler}"]
    options.append(f"-DCMAKE_C_COMPILER={compiler.replace('clang++', 'clang')}")
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for command in (
        ["cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja", *options],
        ["cmake", "--build", str(BUILD), "-j", str(JOBS), "--target", *wanted],
    ):
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    return [Fuzzer(name, (str(BUILD / "native/tests/fuzz" / name),), NATIVE / "corpus" / name) for name in wanted]


def python(names: list[str]) -> list[Fuzzer]:
    """The fuzzers of code in Python of these names, or all. atheris is installed if it is missing."""
    wanted = [name for name in PYTHON if not names or name in names]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "atheris"]
    if wanted and subprocess.run(install, capture_output=True, check=False).returncode:
        print(f"{NOT_TESTED} of Python code: pip install atheris fails, which this Python may be too new for")
        return []
    program = sys.executable, str(HERE / "with_atheris.py")
    also = {"pickles": (str(NATIVE / "corpus/pickle_fuzz"),)}
    return [Fuzzer(name, (*program, name), HERE / "corpus" / name, also.get(name, ())) for name in wanted]


def fuzz(fuzzer: Fuzzer, seconds: float, seed: int) -> Outcome:
    failed = BUILD / "failed"
    for folder in (fuzzer.found, fuzzer.corpus, failed):
        folder.mkdir(parents=True, exist_ok=True)
    limits = f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-artifact_prefix={failed}/{fuzzer.name}-"
    ran = fuzzer.run(*OPTIONS, *limits, str(fuzzer.found), str(fuzzer.corpus), *fuzzer.also)
    return Outcome(fuzzer, ran.returncode == 0, ran.stdout + ran.stderr)


def keep(fuzzer: Fuzzer) -> None:
    """Add what has been found to the corpus: as few inputs as reach all code that is reached."""
    with tempfile.TemporaryDirectory() as folder:
        ran = fuzzer.run(
            "-set_cover_merge=1",
            "-use_counters=0",
            "-use_value_profile=0",
            folder,
            str(fuzzer.corpus),
            str(fuzzer.found),
        )
        if ran.returncode:
            raise SystemExit(ran.stderr)
        known = {path.read_bytes() for path in fuzzer.corpus.iterdir()}
        for path in Path(folder).iterdir():
            if (data := path.read_bytes()) not in known:
                (fuzzer.corpus / path.name[:12]).write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1, help="how long to run, all fuzzers together")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs; by default, each run has other ones")
    parser.add_argument("--keep", action="store_true", help="then add what was found to the corpora of the core's")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a fuzzer; by default all run")
    options = parser.parse_args()
    if unknown := set(options.names).difference(CORE, PYTHON):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join((*CORE, *PYTHON))}")
    fuzzers = native(options.names) + python(options.names)
    if not fuzzers:
        return 0
    seconds = max(LEAST, options.minutes * 60 * JOBS / len(fuzzers))
    print(f"{'fuzzer':<16} {'executions':>10} {'coverage':>8} {'inputs':>7}   each {seconds:.0f} s", flush=True)
    failed = []
    with ThreadPoolExecutor(JOBS) as pool:
        for outcome in pool.map(lambda each: fuzz(each, seconds, options.seed), fuzzers):
            print(outcome, flush=True)
            if not outcome.passed:
                failed.append(outcome)
            elif options.keep and outcome.fuzzer.corpus.is_relative_to(NATIVE):
                keep(outcome.fuzzer)
    for outcome in failed:
        print(f"== {outcome.fuzzer.name}\n{outcome.log[-6000:]}")
        print(f"the input is in build/fuzz/failed; {' '.join(outcome.fuzzer.command)} FILE runs it again")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
