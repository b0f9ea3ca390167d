"""For every test: a hang ends with the stacks printed, nothing may be left behind, what was skipped is said last."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import pytest_timeout

from leftovers import MARK, in_use, shared_memory_files, started_processes

# The files of these folders share the rank processes of run_ranks, which would otherwise import torch for each file.
SHARE_RANKS = {Path(__file__).parent / folder for folder in ("backends", "frontends/torch", "group", "overlap")}
GRACE = 3.0  # seconds for what is ending to be gone

os.environ.update([MARK.split("=")])
os.environ.setdefault("RANKWISE_TRACE", "none")  # jobs that fail on purpose leave no trace
os.environ.setdefault("RANKWISE_TUNING", "none")  # the thresholds are those that the tests expect
os.environ.setdefault("RANKWISE_TIMEOUT", "60")  # ranks that wait for each other say so well before pytest's timeout
os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a rank that crashes prints its stack

# As in `make test &`. What the tests start, and interrupt, would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # which is not captured yet


# faulthandler prints the stacks, not pytest-timeout: it needs no GIL, and what it prints in a worker of pytest-xdist
# reaches the terminal.
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[_stderr])
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test file there are no processes and no unused shared-memory files that it did not find."""
    files, processes = shared_memory_files(), started_processes()
    yield
    if "rankwise.testing" in sys.modules:  # run_ranks keeps its rank processes for the next call
        ranks = sys.modules["rankwise.testing.ranks"]
        if request.path.parent not in SHARE_RANKS:
            ranks.close_pools()
        processes |= {process.pid: "" for pool in ranks._pools.values() for process in pool._processes}
    end = time.monotonic() + GRACE
    while True:
        new_files = {file for file in shared_memory_files() - files if not in_use(file)}
        new_processes = {pid: command for pid, command in started_processes().items() if pid not in processes}
        if not new_files and not new_processes:
            return
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    pytest.fail(f"left behind: in /dev/shm {sorted(new_files)}, processes {new_processes}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """The last lines name what this machine lacks, so that tests were skipped; tests/parts.py repeats them."""
    yield
    skipped: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if "make test-" not in reason:  # else another part runs them
            skipped[report.nodeid.partition("::")[0], reason] += 1
    for (file, reason), count in skipped.items():
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.line(f"not tested: {tests} of {file}: {reason}")
