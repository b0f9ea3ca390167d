"""Limits on address space, descriptors or file size: it works, or the error names what is needed and available."""

from __future__ import annotations

import re
import resource
import subprocess
import sys

import pytest

from faults.trials import Trial, fault

MIB = 1 << 20
# The resource, and from how little to how much of it a trial gives.
LIMITS = {
    "addresses": (resource.RLIMIT_AS, 300 * MIB, 60_000 * MIB),
    "file size": (resource.RLIMIT_FSIZE, 4096, 16 * MIB),
    "descriptors": (resource.RLIMIT_NOFILE, 5, 60),
}
PROGRAM = "import sys, rankwise as rw; g = rw.init(); assert g.all_reduce(1) == g.world_size; g.split(0).barrier()"


@pytest.mark.parametrize("name", list(LIMITS))
@fault(12, "too few", few=1, full=25)
def test_limit(trial: Trial, name: str) -> None:
    kind, least, most = LIMITS[name]
    limit = int(least * (most / least) ** trial.rng.random())
    n = trial.rng.randint(2, 8)
    ran = subprocess.run(
        [sys.executable, "-m", "rankwise", "run", "-n", str(n), "--timeout", "10", "python", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
    )
    print(limit, ran.returncode, ran.stderr)
    if ran.returncode == 0:
        assert ran.stderr == ""
        return
    assert ran.returncode in (1, 2), "no exit code of an error"
    if re.search("segment|shared memory", ran.stderr):
        assert re.search(r"(needs \d+ MiB|\d+ MiB needed).*, (\d+ MiB|which rank \d+ could not allocate)", ran.stderr)
    else:
        assert re.search(r"open files|MemoryError|Cannot allocate|Resource temporarily unavailable|Errno", ran.stderr)
