"""rankwise.trace: spans of the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

import rankwise as rw
from rankwise.observe import spans
from rankwise.system.settings import SPANS_MEMFD


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Tracing on, as in a rank of `rankwise run --trace`; the descriptor that takes the spans."""
    fd = os.memfd_create(SPANS_MEMFD)
    monkeypatch.setenv("RANKWISE_TRACE_FD", str(fd))
    monkeypatch.setattr(spans, "_fd", spans._UNKNOWN)
    yield fd
    spans.flush()
    monkeypatch.setattr(spans, "_fd", None)
    os.close(fd)


def recorded(fd: int) -> list[tuple[str, str, int, int]]:
    spans.flush()
    return [tuple(json.loads(line)) for line in os.pread(fd, 1 << 20, 0).splitlines()]


def test_a_block_and_a_function(kept: int) -> None:
    @rw.trace.span("step")
    def countdown(n: int) -> int:
        return countdown(n - 1) if n else 7

    before = time.time_ns()
    with rw.trace.span("outer", lane="compute"), rw.trace.span("inner", lane="compute"):
        assert countdown(2) == 7
    found = recorded(kept)
    assert [(lane, name) for lane, name, _, _ in found] == [("program", "step")] * 3 + [
        ("compute", "inner"),
        ("compute", "outer"),
    ]
    times = [(begin, end) for _, _, begin, end in found]
    assert all(before <= begin <= end <= time.time_ns() for begin, end in times)
    for inside, outside in pairwise(times):
        assert outside[0] <= inside[0]
        assert inside[1] <= outside[1]


def test_an_error_passes_and_the_span_ends(kept: int) -> None:
    with pytest.raises(KeyError), rw.trace.span("fails"):
        raise KeyError
    assert [name for _, name, _, _ in recorded(kept)] == ["fails"]


def test_spans_made_elsewhere(kept: int) -> None:
    assert rw.trace.on()
    rw.trace.add("kernel", 10, 20, lane="gpu")
    with pytest.raises(ValueError, match="end=9: expected not before begin=10"):
        rw.trace.add("kernel", 10, 9)
    assert recorded(kept) == [("gpu", "kernel", 10, 20)]


def test_spans_of_many_threads_are_all_kept(kept: int) -> None:
    def body() -> None:
        for _ in range(3000):
            with rw.trace.span("short"):
                pass

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorded(kept)) == 12_000


def test_a_forked_child_does_not_report_its_parents_spans(kept: int) -> None:
    rw.trace.add("parent", 1, 2)
    pid = os.fork()
    if pid == 0:
        rw.trace.add("child", 3, 4)
        spans.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    assert sorted(name for _, name, _, _ in recorded(kept)) == ["child", "parent"]


@pytest.mark.parametrize("fd", ["", "0", "77"])
def test_no_spans_are_kept_unless_a_launcher_requests_them(fd: str) -> None:
    """In a process that a rank started, the descriptor with that number may be another file."""
    code = (
        "import rankwise as rw\nassert not rw.trace.on()\nwith rw.trace.span('x'): pass\n"
        "rw.trace.add('y', 1, 2)\nfrom rankwise.observe import spans; assert not spans._pending"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RANKWISE_TRACE_FD": fd},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
