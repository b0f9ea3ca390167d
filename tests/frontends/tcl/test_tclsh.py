"""`rankwise tclsh` and `rankwise run prog.tcl`: scripts, endings, options, the interactive shell."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankwise.frontends.tcl.commands import COMMANDS

both_hosts = pytest.mark.usefixtures("host")

RANKWISE = [sys.executable, "-m", "rankwise"]
PAGES = Path(__file__).resolve().parents[3] / "docs" / "spec"


def tclsh(*words: str, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*RANKWISE, "tclsh", *words]
    return subprocess.run(command, input=stdin, cwd=cwd, capture_output=True, text=True, timeout=150)


def ranks(n: int, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*RANKWISE, "run", "-n", str(n), *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)


def script(folder: Path, text: str) -> str:
    (folder / "script.tcl").write_text(text, encoding="utf-8")
    return str(folder / "script.tcl")


# ---- scripts ----


@both_hosts
def test_a_page_is_a_script(tmp_path: Path) -> None:
    page = (PAGES / "distributed_barrier.md").read_text()
    block = re.search(r"^```tcl\n(# Load the extension\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    done = tclsh(script(tmp_path, block[1]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r'# Output: "(.*)"', block[1])


@both_hosts
def test_arguments_and_text(tmp_path: Path) -> None:
    path = script(tmp_path, 'puts "[file tail $argv0] $argc [lindex $argv 1]"; puts "Grüße"; puts [info script]')
    done = tclsh(path, "a", "two words", "-n")
    assert done.stdout.splitlines() == ["script.tcl 3 two words", "Grüße", path]


@both_hosts
def test_standard_input_is_a_script() -> None:
    done = tclsh(stdin="set t [torch::ones {2}]\nputs [torch::tensor_shape $t]\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


@both_hosts
def test_the_library_and_the_package_are_already_loaded() -> None:
    done = tclsh(stdin="load ./libtorchtcl.so; puts [package require torchtcl]; load libtorchtcl.so")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")


@both_hosts
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("", marks=pytest.mark.slow),
        "after 1 {catch {exit 7}}; vwait forever",
        pytest.param("proc f {} {catch {exit 7}}; f", marks=pytest.mark.slow),
    ],
)
def test_exit_ends_at_once_with_its_code_and_all_output(tmp_path: Path, where: str) -> None:
    text = f"puts -nonewline here; set f [open out w]; puts -nonewline $f there; {where or 'exit 7'}; puts never"
    done = tclsh(script(tmp_path, text), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, "here", "")
    assert (tmp_path / "out").read_text() == "there"


@both_hosts
def test_an_uncaught_error_prints_error_info(tmp_path: Path) -> None:
    done = tclsh(script(tmp_path, 'puts first\nproc f {} {torch::distributed_gather "x"}\nf\nputs never'), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "first\n")
    lines = done.stderr.splitlines()
    assert lines[0] == "Invalid tensor name"
    assert '"torch::distributed_gather "x""' in lines
    assert lines[-1] == f'    (file "{tmp_path}/script.tcl" line 3)'


@both_hosts
def test_a_caught_error_has_its_text_and_code(tmp_path: Path) -> None:
    text = """
        puts [catch {torch::distributed_gather -tensor "nonexistent"} error options]
        puts $error
        puts [dict get $options -errorcode]
        try {torch::zeros x} trap {RANKWISE ValueError} message {puts $message}
    """
    assert tclsh(script(tmp_path, text)).stdout.splitlines() == [
        "1",
        "Invalid tensor name",
        "RANKWISE ValueError",
        'Invalid -shape parameter: "x". Must be a list of integers of at least 0.',
    ]


@both_hosts
def test_ctrl_c_ends_a_script(tmp_path: Path) -> None:
    path = script(tmp_path, "puts ready; while 1 {}")
    process = subprocess.Popen([*RANKWISE, "tclsh", path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == -signal.SIGINT
    process.stdout.close()


@pytest.mark.usefixtures("in_tclsh")
def test_without_tcl_and_tclsh_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = tclsh(stdin="puts x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rankwise tclsh: error: ")
    assert "apt install python3-tk" in done.stderr
    assert "install tcl" in done.stderr
    assert done.stderr.count("\n") == 1


# ---- under the launcher ----


@both_hosts
def test_ranks_run_a_script(tmp_path: Path) -> None:
    text = """
        puts [torch::distributed_init 0 3 "shm"]
        set x [torch::full {2} [torch::get_rank] int32]
        puts "$argv [torch::tensor_to_list [torch::distributed_all_reduce $x "max"]] [torch::distributed_barrier]"
    """
    done = ranks(3, script(tmp_path, text), "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("a b 2 2 Barrier synchronized (3 processes)\n") == 3
    for rank in range(3):
        assert f"Distributed training initialized (3 processes): rank={rank}, world_size=3, backend=" in done.stdout


@both_hosts
@pytest.mark.parametrize(
    "end",
    [
        "error boom",
        *(pytest.param(end, marks=pytest.mark.slow) for end in ("torch::distributed_gather nonexistent", "exit 1")),
    ],
)
def test_a_rank_that_exits_ends_the_job(tmp_path: Path, end: str) -> None:
    text = f"""
        torch::distributed_init 0 3 "shm"
        torch::distributed_barrier
        if {{[torch::get_rank] == 1}} {{{end}}}
        torch::distributed_barrier
        puts never
    """
    done = ranks(3, "--timeout", "20", script(tmp_path, text))
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert re.match(r"rankwise: rank 1 \(pid \d+\) exited with status 1", last), done.stderr
    assert "rank 1 (pid" in done.stderr.replace(last, "")  # the others' PeerLostError
    if end != "exit 1":
        assert ("boom" if "boom" in end else "Invalid tensor name") in done.stderr


@both_hosts
def test_a_lost_rank_can_be_caught(tmp_path: Path) -> None:
    text = """
        torch::distributed_init 0 2 "shm"
        if {[torch::get_rank] == 1} {exit 0}
        try {torch::distributed_barrier} trap {RANKWISE PeerLostError} message {puts "lost: $message"}
    """
    done = ranks(2, "--timeout", "20", script(tmp_path, text))
    assert done.returncode == 0
    assert re.match(r"lost: rank 1 \(pid \d+ on \S+\) exited with status 0", done.stdout), done.stdout


def test_a_missing_script() -> None:
    assert ranks(2, "nowhere.tcl").returncode == 127
    done = tclsh("nowhere.tcl")
    assert (done.returncode, done.stderr) == (1, "rankwise tclsh: error: script not found: nowhere.tcl\n")


# ---- options and help ----


def test_options(tmp_path: Path) -> None:
    done = tclsh("--commands")
    for command in COMMANDS.values():
        assert f"torch::{command.name}" in done.stdout
        assert command.what in done.stdout
    assert "torch::distributed_scatter tensor ?src? ?group?" in done.stdout
    assert "torch::distributed_scatter -tensor tensor ?-src src? ?-group group?" in done.stdout
    assert "torch::distributedScatter" in done.stdout
    folder = Path(tclsh("--package-path").stdout.strip())
    assert {"pkgIndex.tcl", "torchtcl.tcl", "libtorchtcl.so"} <= {path.name for path in folder.iterdir()}
    assert "examples:" in tclsh("--help").stdout
    for words in (["--fly"], ["--commands", "more"]):
        done = tclsh(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1


@both_hosts
@pytest.mark.parametrize(
    "name",
    [
        "distributed_gather",
        pytest.param("torch::distributedGather", marks=pytest.mark.slow),
        pytest.param("::torch::distributed_gather", marks=pytest.mark.slow),
    ],
)
def test_help_of_a_command(name: str) -> None:
    done = tclsh(stdin=f"torch::help {name}")
    command = COMMANDS["distributed_gather"]
    assert done.stdout.startswith(command.what)
    for wanted in ("usage:", "-dst", "(default 0)", "example:", command.example.splitlines()[0], command.returns):
        assert wanted in done.stdout


@both_hosts
def test_help_by_topic_and_the_nearest_command() -> None:
    done = tclsh(
        stdin="""
        torch::help
        torch::help arithmetic
        catch {torch::allreduce 1} error options
        puts "$error | [dict get $options -errorcode]"
        namespace eval other {catch {::torch::tensorSums} error; puts $error}
        catch {torch::quux} error; puts $error
        catch {quux 1 2} error; puts $error
        catch {torch::help distrbuted_gather} error; puts $error
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("topics:\n  ranks ")
    assert "arithmetic: compute with tensors\n\ntorch::tensor_add tensor other\n" in done.stdout
    wanted = 'invalid command name "torch::allreduce": did you mean torch::distributed_all_reduce?'
    assert done.stdout.splitlines()[-5:] == [
        f"{wanted} | TCL LOOKUP COMMAND torch::allreduce",
        'invalid command name "torch::tensorSums": did you mean torch::tensor_sum?',
        'invalid command name "torch::quux": torch::help lists the commands',
        'invalid command name "quux"',
        'Invalid -command parameter: "distrbuted_gather". Did you mean torch::distributed_gather?',
    ]


# ---- the shell ----


class Terminal:
    """`rankwise tclsh` on a terminal of its own, with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "HOME": str(home), "TERM": "dumb", "INPUTRC": "/dev/null"}
        command = ["setsid", "--ctty", *RANKWISE, "tclsh"]  # for Ctrl-C it must be the controlling terminal
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.seen = ""
        self.expect("ends.")

    def __enter__(self) -> Terminal:
        self.expect("% ")
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def expect(self, text: str) -> None:
        """Read until `text` comes, after what was expected before."""
        end = time.monotonic() + 20
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.seen!r}"
            self.seen += os.read(self.master, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str, *expected: str, prompt: str = "% ") -> None:
        """Type `text`, and wait for what it shall bring, and the next prompt."""
        os.write(self.master, text.encode())
        for wanted in (*expected, prompt):
            self.expect(wanted)

    def settle(self) -> None:
        """Wait until the shell sleeps at its prompt: Python keeps a Ctrl-C that comes sooner until the next key."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        end = time.monotonic() + 20
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < end, "the shell does not come to rest at its prompt"
            time.sleep(0.01)

    def end(self, text: str) -> int:
        os.write(self.master, text.encode())
        return self.process.wait(timeout=100)


@pytest.mark.usefixtures("in_python")
def test_the_shell_evaluates_completes_and_remembers(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    with Terminal(tmp_path) as terminal:
        terminal.type("expr {6\n", prompt="> ")
        terminal.type("* 7}\n", "42")
        # As far as it is clear: reduce or reduce_scatter.
        terminal.type("torch::distributed_red\t\n", "distributed_red", "uce", "Required parameter missing: -tensor")
        terminal.type("torch::on\t{2 3}\n", "tensor0")
        terminal.type("torch::distributed_gather -te\ttens\t -d\t0\n", "-te", "nsor ", "or0", "st ", "tensor1")
        terminal.type("set mine [torch::ze\t{1}]\n", "tensor2")
        terminal.type("nonsense\n", 'invalid command name "nonsense"')
        assert terminal.end("exit 3\n") == 3
    with Terminal(tmp_path) as terminal:
        terminal.type("\x10\x10\n", "exit 3", "nonsense", 'invalid command name "nonsense"')  # Ctrl-P twice
        assert terminal.end("\x04") == 0


@pytest.mark.usefixtures("in_python")
def test_ctrl_c_at_the_prompt_gives_a_new_one(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        os.write(terminal.master, b"puts never")
        terminal.expect("never")
        terminal.settle()
        terminal.type("\x03")
        terminal.type("puts [expr {20 + 3}]\n", "23")
        assert terminal.end("\x04") == 0


@both_hosts
def test_ctrl_c_in_a_command_ends_the_shell(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.type("puts now; while 1 {}\n", "now", prompt="now")
        assert terminal.end("\x03") == -signal.SIGINT


@pytest.mark.usefixtures("in_tclsh")
def test_the_shell_in_tclsh(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.type("expr {6\n", prompt="> ")
        terminal.type("* 7}\n", "42")
        terminal.type("torch::ones {2 3}\n", "tensor0")
        terminal.type("nonsense\n", 'invalid command name "nonsense"')
        assert terminal.end("exit 3\n") == 3
    with Terminal(tmp_path) as terminal:
        assert terminal.end("\x04") == 0
