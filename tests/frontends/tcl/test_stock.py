"""A stock tclsh: the package, the library, the child that does the work and ends with its tclsh."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankwise.frontends.tcl.main import package_path

TCLSH = shutil.which("tclsh")
FOLDER = package_path()
PAGES = Path(__file__).resolve().parents[3] / "docs" / "spec"

pytestmark = pytest.mark.skipif(TCLSH is None, reason="there is no tclsh; apt install tcl")

TIMER = 10_000  # microseconds: far below any timer, and far above the 50 that a command takes to the child and back
LOAD = "load ./libtorchtcl.so\n"
REQUIRE = "package require torchtcl\n"


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library in the current folder, as a link, and the package where tclsh finds it."""
    assert FOLDER is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCLLIBPATH", str(FOLDER))
    monkeypatch.delenv("RANKWISE_TCL_PYTHON", raising=False)
    Path("libtorchtcl.so").symlink_to(FOLDER / "libtorchtcl.so")


def command(text: str) -> list[str]:
    Path("script.tcl").write_text(text)
    assert TCLSH is not None
    return [TCLSH, "script.tcl"]


def tclsh(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(command(text), capture_output=True, text=True, timeout=150, env=env)


def first_examples() -> list[tuple[str, list[str]]]:
    """The first example of each page, and what it prints or what shape its results have."""
    found = []
    for name in ("barrier", "gather", "scatter", "reduce_scatter"):
        page = (PAGES / f"distributed_{name}.md").read_text().partition("## Examples")[2]
        block = re.search(r"^```tcl\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert block is not None
        if name == "barrier":
            found.append((block[1].replace("load ./libtorchtcl.so", ""), re.findall(r'# Output: "(.*)"', block[1])))
            continue
        names = dict.fromkeys(re.findall(r"set (result\d*) ", block[1]))
        shows = "".join(f"puts [torch::tensor_shape ${name}]\n" for name in names)
        found.append((block[1] + shows, ["1 2 3" if name == "gather" else "2 2"] * len(names)))
    return found


@pytest.mark.parametrize("start", [LOAD, REQUIRE], ids=["load", "package"])
@pytest.mark.parametrize(("text", "printed"), first_examples(), ids=["barrier", "gather", "scatter", "reduce_scatter"])
def test_first_examples_of_the_pages(start: str, text: str, printed: list[str]) -> None:
    done = tclsh(start + text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == printed


def test_a_copied_library_finds_python_on_the_path_or_by_its_variable() -> None:
    assert FOLDER is not None
    Path("libtorchtcl.so").unlink()
    shutil.copy(FOLDER / "libtorchtcl.so", "libtorchtcl.so")
    for environment in (
        {"RANKWISE_TCL_PYTHON": sys.executable},
        {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    ):
        done = tclsh(LOAD + "puts [torch::tensor_numel [torch::ones {3}]]", **environment)
        assert (done.stdout, done.stderr) == ("3\n", "")


def test_the_library_is_small_and_does_not_link_python() -> None:
    assert FOLDER is not None
    data = (FOLDER / "libtorchtcl.so").read_bytes()
    assert len(data) < 100_000
    assert b"libpython" not in data
    assert b"Torchtcl_Init\0" in data


def test_a_python_without_rankwise_is_named() -> None:
    done = tclsh("catch {package require torchtcl} error; puts $error", RANKWISE_TCL_PYTHON="/nowhere/python3")
    assert done.stdout.startswith(
        "torchtcl: /nowhere/python3 cannot run rankwise; RANKWISE_TCL_PYTHON may name the Python"
    )
    done = tclsh("catch {package require torchtcl} error; puts $error", RANKWISE_TCL_PYTHON="false")
    assert done.stdout.startswith("torchtcl: false cannot run rankwise; ")


def test_errors_output_and_help_pass_through_the_pipe() -> None:
    done = tclsh(
        REQUIRE
        + """
        catch {torch::allreduce x} error; puts stderr $error
        puts [catch {torch::distributed_gather -tensor "nonexistent"} error options]
        puts "$error, [dict get $options -errorcode]"
        catch {torch::zeros "f\\u00fcnf \\{"} error
        puts [string match "Invalid -shape parameter: \\"f\\u00fcnf \\{\\". Must be*" $error]
        puts [llength [torch::tensor_to_list [torch::zeros {300 1000}]]]
        torch::help distributed_barrier
        torch::ones x
        """
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[:4] == ["1", "Invalid tensor name, RANKWISE ValueError", "1", "300000"]
    assert lines[4] == "Return when every rank has called it."
    unknown, *rest = done.stderr.splitlines()
    assert unknown == 'invalid command name "torch::allreduce": did you mean torch::distributed_all_reduce?'
    assert rest[0].startswith('Invalid -shape parameter: "x". Must be')
    assert '"torch::ones x"' in done.stderr


def test_half_of_a_surrogate_pair_is_an_error_and_the_session_goes_on() -> None:
    script = """
set t [torch::ones 3]
puts [catch {torch::tensor_load "\\ud800"}]
puts [catch {torch::tensor_load "no such file"} message]
puts $message
puts [torch::tensor_to_list $t]
"""
    done = tclsh(REQUIRE + script)
    assert done.stdout.splitlines() == [
        "1",
        "1",
        'Invalid -file parameter: "no such file". No such file or directory.',
        "1.0 1.0 1.0",
    ], done.stderr


def test_a_command_waits_for_no_timer() -> None:
    done = tclsh(
        REQUIRE
        + """
        set t [torch::ones {2 3}]
        set best 1e9
        for {set i 0} {$i < 200} {incr i} {
            set best [expr {min($best, [lindex [time {torch::tensor_shape $t} 20] 0])}]
        }
        puts $best
        """
    )
    assert float(done.stdout) < TIMER


def test_ranks_of_the_launcher() -> None:
    text = LOAD + (
        'torch::distributed_init 0 3 "shm"\n'
        "set x [torch::full {3} [torch::get_rank] int64]\n"
        "puts [torch::tensor_to_list [torch::distributed_reduce_scatter $x sum]]\n"
        "puts [torch::distributed_barrier]\n"
    )
    run = [sys.executable, "-m", "rankwise", "run", "-n", "3", "--", *command(text)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(["3", "Barrier synchronized (3 processes)"] * 3)


# ---- the child's end ----


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def child_of(process: subprocess.Popen[str]) -> int:
    """The script's first line of output is its child's process id."""
    assert process.stdout is not None
    return int(process.stdout.readline())


PID = "puts [pid $::torch::channel]; flush stdout\n"


@pytest.mark.parametrize("end", ["", "exit 3", "error boom"])
def test_the_child_ends_with_the_script(end: str) -> None:
    done = tclsh(REQUIRE + PID + end)
    assert done.returncode == {"": 0, "exit 3": 3, "error boom": 1}[end]
    assert gone_within(int(done.stdout), 20.0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_ends_when_tclsh_is_killed(how: signal.Signals) -> None:
    # The other process that tclsh started must not keep the pipe open.
    text = REQUIRE + PID + "exec sleep 3 &\nputs ready\nflush stdout\nafter 30000"
    process = subprocess.Popen(command(text), stdout=subprocess.PIPE, text=True)
    child = child_of(process)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(how)
    assert process.wait(timeout=100) == -how
    assert gone_within(child, 20.0)
    process.stdout.close()


def test_a_child_waiting_for_other_ranks_ends_too() -> None:
    text = REQUIRE + PID + 'torch::distributed_init 1 2 127.0.0.1 29519 "gloo"'
    process = subprocess.Popen(command(text), stdout=subprocess.PIPE, text=True)
    child = child_of(process)
    time.sleep(0.3)
    assert alive(child)
    process.kill()
    process.wait(timeout=100)
    assert gone_within(child, 20.0)
    assert process.stdout is not None
    process.stdout.close()


def test_a_lost_child_is_an_error_not_a_hang() -> None:
    done = tclsh(
        REQUIRE
        + """
        exec sh -c "kill -KILL [pid $::torch::channel]"
        puts [catch {torch::ones {2}} error options]
        puts "$error | [dict get $options -errorcode]"
        puts [catch {torch::ones {2}} error]
        """
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], lines[2]) == (0, "1", "1")
    assert lines[1] == "torchtcl: its Python process has ended (child killed: kill signal) | RANKWISE PythonLost"
