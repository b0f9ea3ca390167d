"""For every test: a failure or a hang shows all stacks, nothing may be left behind, what was skipped is said last."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Container, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout

import failure_report
from leftovers import MARK, in_use, shared_memory_files, started_processes

# Files that share the rank processes of run_ranks, which would otherwise import torch for each file: with
# `--dist loadfile` those of one name run in one worker of pytest-xdist, one after the other. First match wins.
SHARE_RANKS = {
    "engines": r"backends/test_(?!gloo_in_threads|hierarchical|many_hosts|nccl|threads)|frontends/torch/|overlap/"
    r"|group/test_(async_memory|dropped_works|messages|out|recovery|scan|scatter)"
    r"|observe/test_measure|random_programs/",
    "groups": r"group/",
}
TESTS = Path(__file__).parent
GRACE = 3.0  # seconds for what is ending to be gone
NO_GIL = 60.0  # seconds after the timeout; then faulthandler ends the run, in case some thread keeps the GIL

os.environ.update([MARK.split("=")])
os.environ.setdefault("RANKWISE_TRACE", "none")  # jobs that fail on purpose leave no trace
os.environ.setdefault("RANKWISE_TUNING", "none")  # the thresholds are those that the tests expect
os.environ.setdefault("RANKWISE_TIMEOUT", "60")  # ranks that wait for each other say so well before pytest's timeout
os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a rank that crashes prints its stack

# As in `make test &`. What the tests start, and interrupt, would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_stderr = pytest.StashKey[int]()
_timer = pytest.StashKey[threading.Timer]()


def shares_ranks(file: Path) -> str:
    """The name in SHARE_RANKS under which this file shares its rank processes; "" if it does not."""
    path = str(file.relative_to(TESTS))
    return next((name for name, files in SHARE_RANKS.items() if re.match(files, path)), "")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # not captured yet; in a worker of pytest-xdist it leads to the terminal


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return shares_ranks(config.rootpath / file) or file

    return Scheduler(config, log)


def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    item.stash[_timer] = timer = threading.Timer(settings.timeout, _end_of_hanging, [item, settings.timeout])
    timer.name, timer.daemon = "the test's timeout", True
    timer.start()
    # For a thread that keeps the GIL: faulthandler needs no GIL, but shows only this process.
    faulthandler.dump_traceback_later(settings.timeout + NO_GIL, exit=True, file=item.config.stash[_stderr])
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    if _timer in item.stash:  # not in that of a file that cannot be imported
        item.stash[_timer].cancel()
    faulthandler.cancel_dump_traceback_later()
    return True


def _end_of_hanging(item: pytest.Item, timeout: float) -> None:
    """Say which test hangs, what it has printed, where its processes are and how busy the machine is; end the run."""
    capture = item.config.pluginmanager.getplugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    parts = {
        f"{item.nodeid} takes more than {timeout:.0f} s": "",
        "its output": "".join(capture.read_global_capture()),
        **_circumstances(),
    }
    with open(item.config.stash[_stderr], "w", errors="replace") as terminal:
        for title, text in parts.items():
            terminal.write(f"\n== {title}\n{text}")
    os._exit(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        report.sections.extend(_circumstances().items())
    return report


def _circumstances() -> dict[str, str]:
    return {"Stacks of the test's processes": failure_report.stacks(), "Load of the machine": failure_report.load()}


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test file there are no processes and no unused shared-memory files that it did not find."""
    files, processes = shared_memory_files(), started_processes()
    yield
    if "rankwise.group.default_group" in sys.modules:
        left = sys.modules["rankwise.group.default_group"].current()
        if left is not None and not left.closed:  # later tests that make one would find it
            left.close()
            print(f"{request.path.name} left the default group open", file=sys.__stderr__)
    if "rankwise.testing" in sys.modules:  # run_ranks keeps its rank processes for the next call
        ranks = sys.modules["rankwise.testing.ranks"]
        if not shares_ranks(request.path):
            ranks.close_pools()
        processes |= {process.pid: "" for pool in ranks._pools.values() for process in pool._processes}
    end = time.monotonic() + GRACE
    new_files, new_processes = _new(files, processes)
    while new_files or new_processes:
        if time.monotonic() > end:
            pytest.fail(f"left behind: in /dev/shm {sorted(new_files)}, processes {new_processes}", pytrace=False)
        time.sleep(0.05)
        # What appears meanwhile is another test's, which runs beside this one.
        still_files, still_processes = _new(files, processes)
        new_files &= still_files
        new_processes = {pid: new_processes[pid] for pid in new_processes.keys() & still_processes.keys()}


def _new(files: set[str], processes: Container[int]) -> tuple[set[str], dict[int, str]]:
    """The shared-memory files that nobody uses and the processes that are not among these."""
    return (
        {file for file in shared_memory_files() - files if not in_use(file)},
        {pid: command for pid, command in started_processes().items() if pid not in processes},
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """The last lines name what this machine lacks, so that tests were skipped; tests/parts.py repeats them."""
    yield
    skipped: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if "make test-all" not in reason:  # else another part runs them
            skipped[report.nodeid.partition("::")[0], reason] += 1
    for (file, reason), count in skipped.items():
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.line(f"not tested: {tests} of {file}: {reason}")
