"""Which rank the launcher blames and why: by what the ranks report, whatever they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "rankwise", "run"]
OTHERS = r"(; (the other rank was|(the other )?\d ranks? (was|were)) ended)?"  # none if all had failed on their own


def last_line(tmp_path: Path, program: str, *words: str, n: int = 2) -> str:
    (tmp_path / "program.py").write_text(program)
    command = [*RUN, "-n", str(n), "program.py", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode, done.stderr
    return re.sub(r" \(pid \d+\)", "", done.stderr.splitlines()[-1])


# What a program may do with rankwise's error.
DEEDS = {
    "wrapped": "raise RuntimeError('a library failed') from error",
    "replaced": "raise RuntimeError('a library failed') from None",
    "passed on as text": "text = str(error)",  # as C++ does, which keeps no cause
    "ended": "traceback.print_exc(); sys.exit(1)",
    "printed in colour": "sys.excepthook = lambda kind, *_: print(f'\\x1b[1;35m{kind.__name__}\\x1b[0m'); raise",
}

LATE = """
import sys, time, traceback
import numpy as np, rankwise as rw
group = rw.init()
if group.rank == 1:
    time.sleep(60)
group.timeout = 0.5
try:
    group.all_reduce(np.ones(3))
except rw.CollectiveTimeout as error:
    exec(sys.argv[1])
raise RuntimeError(f"the library failed: {text}")
"""


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_a_timeout_names_the_rank_that_did_not_come(tmp_path: Path, deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_GRACE", "0.1")  # rank 1 would only sleep on
    headline = "rank 1 did not reach all_reduce #1 within the timeout of 0.5 s"
    assert last_line(tmp_path, LATE, deed) == f"rankwise: {headline}; all 2 ranks were ended"


# Rank 1 ends for its own reasons when rank 0 has ended. As on gloo, the launcher does not see which rank was lost.
LOST = """
import os, sys, time
from pathlib import Path
import rankwise as rw
from rankwise.system import failure_report
failure_report.report_at_exit()  # as in rw.init
if os.environ["RANKWISE_RANK"] == "1":
    while not Path("pid").exists() or "Z" not in Path(f"/proc/{Path('pid').read_text()}/stat").read_text():
        time.sleep(0.01)
    sys.exit(9)
Path("new").write_text(str(os.getpid()))
Path("new").rename("pid")
try:
    raise rw.PeerLostError("a connection ended", rank=1)
except rw.PeerLostError as error:
    exec(sys.argv[1])
"""


@pytest.mark.parametrize("deed", ["wrapped", "replaced", "printed in colour"])
def test_a_rank_that_only_lost_another_is_not_blamed(tmp_path: Path, deed: str) -> None:
    assert last_line(tmp_path, LOST, DEEDS[deed]).startswith("rankwise: rank 1 exited with status 9")


def test_an_error_that_the_program_survived_is_not_the_reason(tmp_path: Path) -> None:
    line = last_line(
        tmp_path,
        """
import sys, time
import rankwise as rw
group = rw.init()
with group.dup() as part:
    try:
        if part.rank:
            part.abort("enough")
        part.barrier()
    except rw.PeerLostError:
        print("goes on")
group.barrier()
if group.rank == 1:
    sys.exit(7)
group.barrier()
""",
    )
    assert re.fullmatch(rf"rankwise: rank 1 exited with status 7 after barrier #\d{OTHERS}", line), line


def test_a_message_that_did_not_come_in_time_is_not_the_reason(tmp_path: Path) -> None:
    line = last_line(
        tmp_path,
        """
import rankwise as rw
group = rw.init()
if group.rank == 0:
    group.recv((1,), 1)
work = group.irecv((1,), 0)
try:
    work.wait(timeout=0.01)
except rw.CollectiveTimeout:
    print("goes on")
{}["x"]
""",
    )
    assert "rank 1 exited with status 1" in line
    assert "KeyError: 'x'" in line


def test_a_mismatch_is_shown_with_the_calls(tmp_path: Path) -> None:
    line = last_line(
        tmp_path,
        """
import numpy as np, rankwise as rw
group = rw.init()
group.all_reduce(np.ones(4 if group.rank else 5))
""",
        n=3,
    )
    where = re.escape(f"at {tmp_path / 'program.py'}:4")
    assert re.search(
        r"exited with status 1 (after all_reduce #1|before its first operation): "
        r"the ranks called different operations .*: "
        rf"rank 0 all_reduce\(count=5, .*\) {where}, ranks 1, 2 all_reduce\(count=4, .*\) {where}{OTHERS}$",
        line,
    ), line


def test_an_exception_is_shown_with_its_place(tmp_path: Path) -> None:
    line = last_line(
        tmp_path,
        """
import rankwise as rw
group = rw.init()
if group.rank:
    group.reshape  # an AttributeError, which rankwise raises
group.barrier()
""",
    )
    where = re.escape(f"at {tmp_path / 'program.py'}:5")
    assert re.search(rf"rank 1 exited with status 1 .*: AttributeError: .* {where}{OTHERS}$", line), line
