"""The parts of the tests. `make test` and `make test-all` run this; the second takes PART=NAME and ARGS="...".

    python tests/parts.py [--env FOLDER] test | all | PART [ARGUMENT...]

FOLDER is make's environment, by default build/env. The arguments are for the part's last command. The last lines say
how long each part took, and repeat the lines of the output that begin with "not tested:".
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_TESTED = "not tested:"
JOBS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Part:
    """Commands of the shell, and what is made before they run.

    {bin} in a command is the folder of the environment's programs, {args} the arguments. needs: stamps of the
    environment, and other files, that the Makefile can make. builds: of the core, with its tests; keys of BUILDS.
    """

    what: str
    commands: tuple[str, ...]
    needs: tuple[str, ...] = (".test",)
    builds: tuple[str, ...] = ()
    args: str = ""
    """The arguments by default."""


BUILDS = {
    "tsan": "-DRANKWISE_SANITIZE=thread",
    "asan": "-DRANKWISE_SANITIZE=address,undefined",
    "poison": "-DRANKWISE_POISON=ON -DRANKWISE_PYTHON=ON -DPython_EXECUTABLE={bin}/python",
    "bindings": "-DRANKWISE_SANITIZE=undefined -DRANKWISE_TESTS=OFF -DRANKWISE_PYTHON=ON"
    " -DPython_EXECUTABLE={bin}/python",
}
"""Options of CMake, by the build's folder in build/."""

MPICH = "build/mpi/mpich/.made"
MPIS = ("build/mpi/openmpi/.made", MPICH)

# Most tests wait for processes, so four files of tests run at once. After a hang the run ends with every stack.
FOUR_AT_ONCE = "-n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0"
PYTEST = "{bin}/python -m pytest"
ENGINES = ("gloo", "gloo_in_threads", "mpi", "hierarchical", "many_hosts", "nccl")
BINDINGS_TESTS = "-k 'not gloo' tests/arrays tests/group tests/conformance tests/properties tests/capi"
CONFORMANCE = " ".join(f"tests/backends/test_{engine}.py" for engine in ENGINES)
POISONED_TESTS = "tests/faults tests/group tests/elastic tests/backends/native tests/backends/test_threads.py"


def native(build: str, variables: str = "", options: str = "") -> str:
    """The command that runs the tests of a build of the core. options: of ctest."""
    ctest = (
        f"{{bin}}/ctest --test-dir build/{build} -j {JOBS} --output-on-failure --timeout 300 --no-tests=error {options}"
    )
    report = "{bin}/python tests/failure_report.py; exit 1"
    return f"RANKWISE_TEST_LIMIT=270 {variables} {ctest} || {{{{ {report}; }}}}"


def python(build: str, tests: str, variables: str = "") -> tuple[str, ...]:
    """The commands that run quick Python tests on a build of the core and of its bindings."""
    site = f"build/{build}/site"
    at = f"PYTHONPATH=$PWD/{site} {variables}"
    return (
        f"rm -rf {site} && mkdir {site} && cp -r src/rankwise {site}"
        f" && {{bin}}/cmake --install build/{build} --prefix {site} >/dev/null",
        f"{at} {{bin}}/python -c 'import rankwise; assert \"/{build}/\" in rankwise.__file__'",
        f"{at} {PYTEST} -m 'not slow' {FOUR_AT_ONCE} {tests} {{args}}",
    )


def model(what: str, option: str) -> str:
    """The command that checks models. Without spin it fails in CI, and elsewhere says that it has not tested them."""
    missing = f"{NOT_TESTED} {what}: there is no spin; apt install spin"
    check = f"{{bin}}/python native/tests/model/check.py {option}"
    return f"if command -v spin >/dev/null; then {check}; else echo '{missing}'; [ -z \"$CI\" ]; fi"


PARTS = {
    # ---- make test ----
    "native": Part("the core", (native("native"),), (".native", ".test")),
    "model": Part(
        "every state of the models of the protocols, with spin", (model("the models of the protocols", ""),), ()
    ),
    "python": Part(
        "the Python tests; ARGS='-k NAME' picks some, ARGS='-n 0' runs one at a time",
        (f"{PYTEST} -m 'not slow' {FOUR_AT_ONCE} --durations=20 {{args}}",),
        (".test", MPICH),
    ),
    # ---- the others of make test-all ----
    "races": Part(
        "the core with ThreadSanitizer on 2 and 3 ranks: 3 minutes",
        (native("tsan", "RANKWISE_SHORT=1"),),
        (".native",),
        ("tsan",),
    ),
    "memory": Part(
        "the core with AddressSanitizer and UBSan on 2 and 3 ranks: 5 minutes",
        (native("asan", "RANKWISE_SHORT=1"),),
        (".native",),
        ("asan",),
    ),
    "slow": Part(
        "the Python tests that make test leaves out", (f"{PYTEST} -m slow --durations=20 {{args}}",), (".test", *MPIS)
    ),
    "model-large": Part(
        "the largest cases of the models: half a minute", (model("the largest cases of the models", "--large"),), ()
    ),
    "sanitizers": Part(
        "the core with ThreadSanitizer, and with AddressSanitizer and UBSan, on every number of ranks",
        (native("tsan"), native("asan")),
        (".native",),
        ("tsan", "asan"),
    ),
    "poison": Part(
        "the core and the tests of shm and threads; whoever uses a group's released memory crashes: 10 minutes",
        (native("poison"), *python("poison", POISONED_TESTS)),
        (".bindings",),
        ("poison",),
    ),
    "bindings": Part(
        "Python tests of arrays and groups on bindings that UBSan watches: 5 minutes",
        (
            "rm -f build/bindings/undefined.*",
            *python("bindings", BINDINGS_TESTS, "UBSAN_OPTIONS=log_path=$PWD/build/bindings/undefined"),
            "! cat build/bindings/undefined.* 2>/dev/null",  # a test may expect the death of a process
        ),
        (".bindings",),
        ("bindings",),
    ),
    "pages": Part(
        "the core on pretended pages of 16 and 64 KiB, all but its C interface's test: 2 minutes",
        tuple(
            native("native", f"RANKWISE_SHORT=1 RANKWISE_PAGE={size}", "-E capi_test") for size in (16 << 10, 64 << 10)
        ),
        (".native", ".test"),
    ),
    "fuzz-long": Part(
        "fuzzing guided by coverage: half an hour",
        ("{bin}/python tests/fuzz/run.py --minutes 30 {args}",),
        (".native",),
    ),
    "engines": Part(
        "the whole conformance suite on gloo, Open MPI, MPICH and hierarchical, on 2 and 4 ranks: 5 minutes",
        (f"RANKWISE_ENGINES=full {PYTEST} {CONFORMANCE} {FOUR_AT_ONCE} {{args}}",),
        (".test", *MPIS),
    ),
    "multihost": Part(
        "2 and 4 network namespaces as hosts of 2 ranks (root, iproute2): 5 minutes",
        (f"RANKWISE_MULTIHOST=full {PYTEST} -q tests/multihost {{args}}",),
    ),
    "faults": Part(
        "every fault, many times at random moments, with a table of results: 15 minutes",
        (
            "RANKWISE_FAULTS=full {bin}/ctest --test-dir build/native -R 'heap|recovery|every' --output-on-failure"
            " --timeout 600 --no-tests=error",
            f"RANKWISE_FAULTS=full {PYTEST} -q tests/faults {{args}}",
        ),
        (".test", ".native"),
    ),
    "random": Part(
        "random programs on the backends other than nccl, with faults, and on MPI: 10 minutes;"
        " ARGS='shm --seed 7 --shorten'",
        ("PYTHONPATH=tests {bin}/python -m random_programs.run {args}",),
        (".test", MPICH),
    ),
    "clients": Part(
        "programs of accelerate, Lightning, Ray and others, on gloo and on rankwise: 8 minutes; ARGS='--clients ray'",
        ("PYTHONPATH=tests nice {bin}/python -m clients.run {args}",),
    ),
    "torch-suite": Part(
        "torch's own tests of its backends, on rankwise and on gloo: half an hour; ARGS='--ranks 2'",
        (
            "{bin}/python -m pip install --quiet --disable-pip-version-check expecttest",
            "nice {bin}/python tests/torch_suite/run.py {args}",
        ),
    ),
    "mpi4py": Part(
        "mpi4py's own tests on rankwise's mpi4py, and programs of packages that build on it: 10 minutes;"
        " ARGS='--ranks 2 p2p_buf'",
        (
            "PYTHONPATH=tests nice {bin}/python -m clients.mpi4py_programs",
            "nice {bin}/python tests/mpi4py_suite/run.py {args}",
        ),
    ),
    # ---- only on request ----
    "fuzz": Part(
        "fuzzing guided by coverage: a minute, after the build; CI runs it; ARGS='--minutes 5 status_fuzz'",
        ("{bin}/python tests/fuzz/run.py {args}",),
        (".native",),
    ),
    "steady": Part(
        "the tests that a change adds or edits, 50 times beside busy loops; ARGS='--base REV' names what it changes",
        ("{bin}/python tests/steady.py {args}",),
        (".test", ".native", *MPIS),
        ("tsan",),
    ),
    "torch-versions": Part(
        "the torch front-end on several versions of torch, with a table of results; ARGS='2.13.0 newest'",
        ("{bin}/python tests/library_versions.py torch build/torch {args}",),
        args="2.10.0 2.13.0 newest",
    ),
    "jax-versions": Part(
        "rankwise.jax on several versions of JAX, with a table of results; ARGS='0.9.2 0.10.2'",
        ("{bin}/python tests/library_versions.py jax build/jax {args}",),
        args="0.8.0 0.8.3 0.9.2 0.10.2",
    ),
    "package": Part(
        "the wheel and the source distribution, installed on each Python that is there: 8 minutes a Python",
        ("{bin}/python tests/package.py build/package {args}",),
    ),
    "debian": Part(
        "the demo and the quick tests in minimal Debian 12 and 13 (root, debootstrap): 30 minutes",
        ("{bin}/python tests/debian.py build/debian bookworm trixie {args}",),
        (),
    ),
    "free-threaded": Part(
        "the tests on a Python without a GIL, which is built if none is installed, then threads with ThreadSanitizer:"
        " 30 minutes",
        (
            "{bin}/python tests/free_threaded.py build/free-threaded {args}",
            "{bin}/python tests/free_threaded.py build/free-threaded --tsan",
        ),
    ),
    "aarch64": Part(
        "the core for 64-bit ARM, built with a cross compiler and run under qemu: 8 minutes",
        (
            "command -v qemu-aarch64 aarch64-linux-gnu-g++ >/dev/null ||"
            " {{ echo 'missing: apt install qemu-user g++-aarch64-linux-gnu'; exit 1; }}",
            "PATH={bin}:$PATH cmake -S . -B build/aarch64 -G Ninja -DRANKWISE_TESTS=ON -DRANKWISE_PYTHON=OFF"
            " -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc"
            " -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"
            " '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu' >/dev/null",
            f"{{bin}}/cmake --build build/aarch64 -j {JOBS}",
            f"RANKWISE_SHORT=1 {{bin}}/ctest --test-dir build/aarch64 -j {JOBS} --output-on-failure --timeout 600"
            " -E 'algorithms|registered'",
            f"grep -rh '^{NOT_TESTED}' build/aarch64/Testing/Temporary/LastTest.log || true",
            f"echo '{NOT_TESTED} algorithms_test and registered_test: they reserve addresses, for which qemu needs"
            " over 20 GiB'",
        ),
        (".native",),
    ),
    "gpu": Part(
        "what needs an NVIDIA GPU: the nccl backend, on one GPU",
        (f"{PYTEST} -q tests/backends/test_nccl.py tests/backends/test_on_a_gpu.py {{args}}",),
        (".nccl",),
    ),
}

TEST = ("native", "model", "python")
BESIDE = ("native", "model")
"""In `make test` they run beside the others, which mostly wait for processes; what they print is shown last."""

ALL = (
    *TEST,
    "slow",
    "model-large",
    "sanitizers",
    "poison",
    "bindings",
    "pages",
    "fuzz-long",
    "engines",
    "multihost",
    "faults",
    "random",
    "clients",
    "mpi4py",
    "torch-suite",
)


def run(command: str, say: Callable[[str], object] = sys.stdout.write) -> bool:
    """Run a command of the shell in the checkout. say: what to do with each line that it prints.

    Returns whether it succeeded.
    """
    with subprocess.Popen(
        command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as shell:
        assert shell.stdout is not None
        for line in shell.stdout:
            say(line)
            sys.stdout.flush()
    return shell.returncode == 0


def bin_of(env: str) -> str:
    return shlex.quote(str(ROOT / env / "bin"))


def prepare(parts: list[Part], env: str) -> bool:
    """Make what the parts need. The builds of the core go on beside the rest, of which much keeps one core busy."""
    needs = {f"{env}/{need}" if need.startswith(".") else need: None for part in parts for need in part.needs}
    builds = {build: None for part in parts for build in part.builds}
    first = [f"PYTHON={bin_of(env)}/python ./prepare.sh tests"]
    first += [f"make --no-print-directory {env}/.native"] if builds else []
    made = [f"make --no-print-directory --jobs 3 {shlex.join(needs)}"] if needs else []
    built = list[str]()
    for build in builds:
        options = f"-DRANKWISE_TESTS=ON -DRANKWISE_PYTHON=OFF {BUILDS[build].format(bin=bin_of(env))}"
        built.append(f"PATH={bin_of(env)}:$PATH cmake -S . -B build/{build} -G Ninja {options} >/dev/null")
        built.append(f"{bin_of(env)}/cmake --build build/{build} -j {JOBS}")
    if f"{env}/.bindings" in needs:  # CMake looks for what make installs
        first, made = first + made, []
    if not all(run(command) for command in first):
        return False
    with ThreadPoolExecutor() as pool:
        beside = pool.submit(lambda: all(run(command) for command in built))
        return all([all(run(command) for command in made), beside.result()])


@dataclass
class Outcome:
    """How a part went. lines: what it printed, if that has not been shown."""

    name: str
    seconds: float = 0.0
    passed: bool = False
    lines: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)


def carry_out(name: str, env: str, arguments: list[str], shown: bool) -> Outcome:
    """Run a part. shown: print each line as it comes."""
    part, outcome, begun = PARTS[name], Outcome(name), time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(line) if shown else outcome.lines.append(line)
        if line.startswith(NOT_TESTED):
            outcome.not_tested.append(line.rstrip())

    say(f"== {name}: {part.what}\n")
    args = shlex.join(arguments) or part.args
    outcome.passed = all(run(each.format(bin=bin_of(env), args=args), say) for each in part.commands)
    outcome.seconds = time.monotonic() - begun
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="build/env")
    parser.add_argument("--list", action="store_true", help="only say what the parts are")
    parser.add_argument("which", nargs="?", default="test", choices=["test", "all", *PARTS])
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.list:
        print(*(f"  PART={name:<16} {part.what}" for name, part in PARTS.items()), sep="\n")
        return 0
    names = {"test": TEST, "all": ALL}.get(options.which, (options.which,))
    if options.args and len(names) > 1:
        parser.error(f"{shlex.join(options.args)}: arguments are for one part; name it with PART=")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of thousands of programs would compile what it imports
    start = time.monotonic()
    if not prepare([PARTS[name] for name in names], options.env):
        return 1
    with ThreadPoolExecutor() as pool:
        beside = BESIDE if options.which == "test" else ()
        waiting = pool.submit(lambda: [carry_out(name, options.env, [], shown=False) for name in beside])
        outcomes = [carry_out(name, options.env, options.args, shown=True) for name in names if name not in beside]
        for outcome in waiting.result():
            sys.stdout.writelines(outcome.lines)
            outcomes.append(outcome)
    print(f"== {(time.monotonic() - start) / 60:.1f} minutes")
    for outcome in outcomes:
        print(f"{outcome.name:<18} {outcome.seconds:6.0f} s  {'passed' if outcome.passed else 'FAILED'}")
    not_tested = [line for outcome in outcomes for line in outcome.not_tested]
    failed = [outcome.name for outcome in outcomes if not outcome.passed]
    for line in dict.fromkeys(not_tested):
        print(line)
    if failed:
        print(f"failed: {', '.join(failed)}; `make test-all PART={failed[0]}` runs one of them alone")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
