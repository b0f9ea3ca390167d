"""A job on several nodes: each is a launcher of its own, here all on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.launchers import HOST, Launchers
from rankwise.launch import nodes
from rankwise.launch.ending import Ending
from rankwise.launch.nodes import Nodes, clock_sample
from rankwise.meeting.connection import LONGEST, Connection
from rankwise.observe.trace_file import Trace
from rankwise.tools.run import main


@pytest.fixture
def launchers() -> Iterator[Launchers]:
    made = Launchers()
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def until_there(paths: list[Path]) -> None:
    end = time.monotonic() + 40
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, "not all ranks have started"
        time.sleep(0.01)


def last_lines(errors: list[str]) -> set[str]:
    return {error.splitlines()[-1] for error in errors}


# ---- the numbers ----


def test_ranks_are_numbered_in_the_order_of_the_nodes(launchers: Launchers) -> None:
    numbers = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK GROUP_WORLD_SIZE RANKWISE_RANK"
    show = f"echo ${numbers.replace(' ', ' $')}; echo $MASTER_ADDR $MASTER_PORT $RANKWISE_SECRET"
    for node, n in ((2, 2), (0, 1), (1, 3)):
        launchers.start(3, node, n, "--tag-output", "sh", "-c", show)
    codes, outputs, errors = launchers.finish()
    assert (codes, errors) == ([0] * 3, [""] * 3)
    lines = [sorted(output.splitlines()) for output in outputs]
    assert [[line for line in each if "127" not in line] for each in lines] == [
        ["[4] 4 6 0 2 2 2 3 4", "[5] 5 6 1 2 2 2 3 5"],
        ["[0] 0 6 0 1 0 0 3 0"],
        ["[1] 1 6 0 3 1 1 3 1", "[2] 2 6 1 3 1 1 3 2", "[3] 3 6 2 3 1 1 3 3"],
    ]
    common = {line[4:] for each in lines for line in each if "127" in line}
    assert len(common) == 1
    assert re.fullmatch(r"127\.0\.0\.1 \d+ [0-9a-f]{32}", common.pop())


def test_output_is_whole_lines_also_of_one_rank_a_node(launchers: Launchers) -> None:
    for node in range(2):
        launchers.start(2, node, 1, "sh", "-c", "printf half; sleep 0.3; echo ' and half'")
    for process in launchers.processes:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"half and half\n"
    assert launchers.finish()[0] == [0, 0]


@pytest.mark.slow
def test_operations_over_two_nodes_and_what_status_and_trace_show(launchers: Launchers, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os, subprocess, sys
import numpy as np, rankwise as rw
group = rw.init()
with rw.trace.span("reduce"):
    total = group.all_reduce(np.full(3, float(group.rank)))
shown = subprocess.check_output([sys.executable, "-m", "rankwise", "status", "--json", str(os.getpid())])
group.barrier()
print(group.rank, group.world_size, group.backend, total.tolist(), shown.decode().replace(chr(10), ""), sep=";")
""")
    launchers.start(2, 0, 2, "--trace", str(tmp_path / "t.json"), str(program))
    launchers.start(2, 1, 2, str(program))
    codes, outputs, errors = launchers.finish()
    assert codes == [0, 0], errors
    assert errors[1] == ""
    for node in range(2):
        for line in outputs[node].splitlines():
            rank, size, backend, total, shown = line.split(";", 4)
            assert int(rank) in (2 * node, 2 * node + 1)
            assert (size, backend, total) == ("4", "hierarchical", "[6.0, 6.0, 6.0]")
            (job,) = json.loads(shown)
            assert job["world_size"] == 4
            assert [one["rank"] for one in job["ranks"]] == [0, 1, 2, 3], "the nodes are on one host"
            for one in job["ranks"]:
                assert one["bytes"] == 24, "the parts of an operation were counted too"
                assert (one["operation"], one["group"]) in (("all_reduce", 0), ("barrier", 0))
    trace = Trace.read(tmp_path / "t.json")
    assert [(rank.rank, rank.host) for rank in trace.ranks] == [(number, HOST) for number in range(4)]
    assert [(clock.node, clock.host) for clock in trace.clocks] == [(1, HOST)]
    assert abs(trace.clocks[0].offset) <= trace.clocks[0].within  # both nodes have this machine's clock
    for rank in trace.ranks:
        assert [op.name for op in rank.operations if not op.part] == ["init", "all_reduce", "barrier"]
        assert {op.group for op in rank.operations if op.part} - {0} == {1 + rank.rank // 2}, rank.operations
        reduce = next(op for op in rank.operations if op.name == "all_reduce" and not op.part)
        assert [op.name for op in rank.operations if op.part and reduce.begin <= op.begin <= (reduce.end or 0)]
        assert [span.name for span in rank.spans] == ["reduce"]
    run = [sys.executable, "-m", "rankwise", "trace", "t.json"]
    shown = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.search(
        rf"^node 1 \({re.escape(HOST)}\): [+-]\d+\.\d+ ms, give or take \d+\.\d+ ms were added", shown, re.M
    )
    assert re.search(r"^who came last to the 2 operations", shown, re.MULTILINE)
    assert "within a host: gather" in shown
    rows = json.loads((tmp_path / "t.perfetto.json").read_text())["traceEvents"]
    assert "within the host" in {row["args"]["name"] for row in rows if row["name"] == "thread_name"}


@pytest.mark.slow
def test_the_trace_of_one_node(launchers: Launchers, tmp_path: Path) -> None:
    """Node 0 wants no trace, so node 1 writes one of its own ranks, whose numbers do not begin with 0."""
    program = ["python", "-c", "import rankwise as rw; g = rw.init(); g.barrier(); g.barrier()"]
    launchers.start(2, 0, 2, *program)
    launchers.start(2, 1, 2, "--trace", str(tmp_path / "t.json"), *program)
    codes, _, errors = launchers.finish()
    assert codes == [0, 0], errors
    assert [rank.rank for rank in Trace.read(tmp_path / "t.json").ranks] == [2, 3]
    run = [sys.executable, "-m", "rankwise", "trace", "t.json"]
    shown = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^who came last to the 2 operations", shown, re.MULTILINE)


def test_a_failure_leaves_one_trace_on_node_0(
    launchers: Launchers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKWISE_TRACE", raising=False)
    # The engine writes into the launcher's memory without a group of all ranks, so that no torch is needed.
    program = ["python", "-c", LOCAL_BARRIER]
    for node in range(2):
        (tmp_path / str(node)).mkdir()
        launchers.start(2, node, 2, *program, TMPDIR=str(tmp_path / str(node)))
    codes, _, errors = launchers.finish()
    assert codes == [3, 3]
    (where,) = [line for line in errors[0].splitlines() if line.startswith("rankwise: the last operations")]
    trace = Trace.read(Path(where.split()[-1]))
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2, 3]
    assert trace.failure is not None
    assert re.match(rf"rank 3 \(pid \d+ on {re.escape(HOST)}\) exited with status 3", trace.failure)
    assert [rank.ended for rank in trace.ranks][3] == "exited with status 3"
    groups = [{op.group for op in rank.operations if op.name == "barrier"} for rank in trace.ranks]
    assert groups == [{1}, {1}, {2}, {2}], "groups of two nodes have the same number"
    assert not list((tmp_path / "1").iterdir())
    assert "trace" not in errors[1]


# The ranks of each node meet in their launcher's memory.
LOCAL_BARRIER = """
import os, sys
from rankwise import _native
segment = _native.Segment.attach(int(os.environ["RANKWISE_SEGMENT_FD"]))
comm = segment.join(int(os.environ["RANKWISE_LOCAL_RANK"]), 30.0, True)
comm.barrier()
comm.close(5.0)
sys.exit(3 if os.environ["RANK"] == "3" else 0)
"""


def pair() -> tuple[Nodes, Nodes]:
    """Two connected launchers' parts in a job of two nodes."""
    ends = socket.create_server(("127.0.0.1", 0))
    with ends:
        other = Connection(socket.create_connection(ends.getsockname()[:2]))
        here = Connection(ends.accept()[0])
    sizes, where = [1, 1], ("127.0.0.1", 1)
    return Nodes(0, sizes, {}, where, "", {1: here}), Nodes(1, sizes, {}, where, "", {0: other})


def test_the_clock_of_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0's clock is 5 s ahead; a long trace arrives as it was."""
    first, second = pair()
    slow = threading.Thread(target=lambda: second.deliver("é" * 100_000) and second.close())

    def time_ns() -> int:
        return time.time_ns() + (0 if threading.current_thread() is slow else 5_000_000_000)

    monkeypatch.setattr(nodes, "time", SimpleNamespace(time_ns=time_ns, monotonic=time.monotonic))
    slow.start()
    found = first.collected()
    assert found[1].text == "é" * 100_000
    assert abs(found[1].offset - 5_000_000_000) <= found[1].within < 1_000_000_000
    first.close()
    slow.join()


@pytest.mark.slow
def test_a_node_that_is_lost_while_it_sends_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair()
    second._send(trace="abc")
    second._connections[0].close()
    assert first.collected() == {}
    first.close()
    first, second = pair()
    first._connections[1].close()
    assert not second.deliver("text")
    second.close()
    monkeypatch.setattr(nodes, "COLLECTING", 0.01)
    first, second = pair()
    assert first.collected() == {}, "node 0 waited for a node that sends nothing"
    first.close()
    second.close()


def test_the_sample_with_the_shortest_way_counts() -> None:
    times = (0, 1000, 400), (1000, 1530, 1020), (2000, 3000, 2500)
    assert min(clock_sample(*each) for each in times) == (10, 520)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gloo", "rankwise"])
def test_torch_over_two_nodes(name: str, launchers: Launchers, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import sys
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
x = torch.ones(3)
dist.all_reduce(x)
sys.stdout.write(f"{dist.get_rank()} {x.tolist()}\\n")
dist.destroy_process_group()
""")
    for node in range(2):
        launchers.start(2, node, 1, str(program), name)
    codes, outputs, errors = launchers.finish()
    assert codes == [0, 0], errors
    assert outputs == [f"{rank} [2.0, 2.0, 2.0]\n" for rank in range(2)]


# ---- the end ----


def test_the_first_failure_ends_all_nodes(launchers: Launchers) -> None:
    code = "if [ $RANK = 2 ]; then exit 7; elif [ $RANK = 0 ]; then exit 0; fi; sleep 60"
    for node, n in ((0, 1), (1, 2), (2, 1)):
        launchers.start(3, node, n, "sh", "-c", code)
    codes, _, errors = launchers.finish()
    assert codes == [7, 7, 7]
    (line,) = last_lines(errors)
    how = rf"rank 2 \(pid \d+ on {re.escape(HOST)}\) exited with status 7"
    assert re.fullmatch(rf"rankwise: {how}; (2|the other 3) ranks were ended", line)  # rank 0 may still run then


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ctrl_c_on_one_node_stops_all(launchers: Launchers, tmp_path: Path, node: int) -> None:
    for number in range(2):
        launchers.start(2, number, 1, "sh", "-c", f"touch {tmp_path}/$RANK; exec sleep 60")
    until_there([tmp_path / "0", tmp_path / "1"])
    launchers.processes[node].send_signal(signal.SIGINT)
    codes, _, errors = launchers.finish()
    assert codes == [130, 130]
    assert last_lines(errors) == {"rankwise: stopped by SIGINT; 2 ranks were ended"}


@pytest.mark.slow
@pytest.mark.parametrize("node", [0, 1])
def test_the_loss_of_a_launcher_ends_the_job(launchers: Launchers, tmp_path: Path, node: int) -> None:
    for number in range(3):
        launchers.start(3, number, 1, "sh", "-c", f"touch {tmp_path}/$RANK; exec sleep 60")
    until_there([tmp_path / str(number) for number in range(3)])
    launchers.processes[node].kill()
    codes, _, errors = launchers.finish()
    assert codes == [-9 if number == node else 1 for number in range(3)]
    name = f"node 1 ({HOST})" if node == 1 else "node 0"
    del errors[node]
    for line in last_lines(errors):
        assert line.startswith(f"rankwise: the launcher of {name} was lost"), line


@pytest.mark.slow
def test_ctrl_c_after_the_ranks_of_this_node_have_ended(launchers: Launchers, tmp_path: Path) -> None:
    code = f"touch {tmp_path}/$RANK; if [ $RANK = 0 ]; then exec sleep 60; fi"
    for number in range(2):
        launchers.start(2, number, 1, "sh", "-c", code)
    until_there([tmp_path / "0", tmp_path / "1"])
    time.sleep(1.0)  # rank 1 ends meanwhile; the test holds without it too
    launchers.processes[1].send_signal(signal.SIGINT)
    codes, _, errors = launchers.finish()
    assert codes == [130, 130]
    assert len(last_lines(errors)) == 1


@pytest.mark.slow
def test_a_launcher_that_cannot_start_its_ranks_says_why_on_all_nodes(launchers: Launchers) -> None:
    launchers.start(2, 0, 1, "sh", "-c", "sleep 60")
    launchers.start(2, 1, 100, "true", files=120)
    codes, _, errors = launchers.finish()
    assert codes == [2, 2]
    assert "rankwise run: error: " in errors[1]
    assert errors[0].startswith(f"rankwise: node 1 ({HOST}) could not run its ranks: "), errors


# ---- going on after a loss ----

NAME = rf"\(pid \d+ on {re.escape(HOST)}\)"


@pytest.mark.slow
def test_the_others_go_on_over_all_nodes(launchers: Launchers, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os, signal
import numpy as np, rankwise as rw
group = rw.init()
group.all_reduce(np.ones(3))
if group.rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        group.all_reduce(np.ones(100_000))
except rw.PeerLostError:
    group = group.shrink()
for _ in range(3):
    total = group.all_reduce(np.full(3, 1.0))
part = group.split(group.rank % 2)
print(group.rank, group.world_size, total.tolist(), part.world_size)
""")
    for node in range(2):
        launchers.start(2, node, 2, "--keep-going", str(program))
    codes, outputs, errors = launchers.finish()
    assert codes == [0, 0], errors
    lines = [f"{rank} 3 [3.0, 3.0, 3.0] {2 - rank % 2}" for rank in range(3)]
    assert [sorted(output.splitlines()) for output in outputs] == [lines[:2], lines[2:]]
    (line,) = last_lines(errors)
    assert re.fullmatch(rf"rankwise: finished without rank 3 {NAME}, which was killed by SIGKILL .*", line), line
    assert re.search(rf"^rankwise: rank 3 {NAME} was killed by SIGKILL .*; the others go on$", errors[1], re.MULTILINE)


def test_a_job_that_goes_on_without_two_ranks(launchers: Launchers, tmp_path: Path) -> None:
    code = f"case $RANK in 1) exit 4;; 3) exit 5;; esac; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo $RANK"
    for node in range(2):
        launchers.start(2, node, 2, "--keep-going", "sh", "-c", code)
    until_noted(launchers, "the others go on")
    (tmp_path / "go").touch()
    codes, outputs, errors = launchers.finish()
    assert (codes, outputs) == ([0, 0], ["0\n", "2\n"]), errors
    lost = [rf"rank {rank} {NAME}, which exited with status {code}" for rank, code in ((1, 4), (3, 5))]
    (line,) = last_lines(errors)
    assert re.fullmatch(f"rankwise: finished without {'; '.join(lost)}", line), line


def until_noted(launchers: Launchers, text: str) -> None:
    """Until every launcher has printed a line with this text; what they print later is kept."""
    for process in launchers.processes:
        assert process.stderr is not None
        assert any(text in line for line in iter(process.stderr.readline, ""))


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 2])
def test_too_few_ranks_are_left(launchers: Launchers, tmp_path: Path, last: int) -> None:
    """Each node could go on after its own loss; both together are too many."""
    first = 3 - last
    code = f"if [ $RANK = {first} ]; then exit 4; fi; if [ $RANK = {last} ]; then "
    code += f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 5; fi; exec sleep 60"
    for node in range(2):
        launchers.start(2, node, 2, "--min-ranks", "3", "sh", "-c", code)
    process = launchers.processes[first // 2]
    assert process.stderr is not None
    assert "the others go on" in process.stderr.readline()
    (tmp_path / "go").touch()
    codes, _, errors = launchers.finish()
    assert codes == [5, 5], errors
    (line,) = last_lines(errors)
    why = rf"rank {last} {NAME} exited with status 5, which leaves fewer than 3 ranks \(--min-ranks\)"
    assert re.fullmatch(rf"rankwise: {why}; 2 ranks were ended", line), line


def test_the_loss_of_rank_0_ends_a_job_of_several_nodes(launchers: Launchers) -> None:
    for node in range(2):
        launchers.start(2, node, 1, "--keep-going", "sh", "-c", "if [ $RANK = 0 ]; then exit 6; fi; exec sleep 60")
    codes, _, errors = launchers.finish()
    assert codes == [6, 6]
    (line,) = last_lines(errors)
    why = rf"rank 0 {NAME} exited with status 6, without which the ranks of other nodes cannot meet"
    assert re.fullmatch(f"rankwise: {why}; the other rank was ended", line), line


@pytest.mark.parametrize(("options", "code"), [(["--keep-going"], 0), (["--min-ranks", "2"], 1)])
def test_a_node_is_lost(launchers: Launchers, tmp_path: Path, options: list[str], code: int) -> None:
    wait = f"touch {tmp_path}/$RANK; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    for node in range(2):
        launchers.start(2, node, 1, *options, "sh", "-c", wait)
    until_there([tmp_path / "0", tmp_path / "1"])
    launchers.processes[1].kill()
    launchers.processes[1].wait()
    if not code:
        (tmp_path / "go").touch()
    codes, _, errors = launchers.finish()
    assert codes == [code, -9]
    line = f"finished without node 1 ({HOST}), whose launcher was lost"
    if code:
        why = "which leaves fewer than 2 ranks (--min-ranks)"
        line = f"the launcher of node 1 ({HOST}) was lost, {why}; the other rank was ended"
    assert errors[0].splitlines()[-1] == f"rankwise: {line}"


def test_all_ranks_are_lost(launchers: Launchers, tmp_path: Path) -> None:
    """Rank 0 has finished, and counts as a rank that is left; otherwise the last loss would fail the job."""
    for node in range(2):
        launchers.start(2, node, 1, "--keep-going", "sh", "-c", "exit $RANK")
    codes, _, errors = launchers.finish()
    assert codes == [0, 0], errors
    (line,) = last_lines(errors)
    assert re.fullmatch(rf"rankwise: finished without rank 1 {NAME}, which exited with status 1", line), line


def test_more_min_ranks_than_ranks(launchers: Launchers) -> None:
    for node in range(2):
        launchers.start(2, node, 1, "--min-ranks", "3", "true")
    codes, _, errors = launchers.finish()
    assert codes == [2, 2]
    assert "min_ranks=3: expected 1 to 2, the number of ranks" in errors[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["0 of node 0"]),
        (("--stdin", "3"), ["3 of node 1"]),
        (("--stdin", "all"), ["0 of node 0", "1 of node 0", "2 of node 1", "3 of node 1"]),
        (("--stdin", "none"), []),
    ],
)
def test_ranks_read_the_standard_input_of_their_own_launcher(
    launchers: Launchers, tmp_path: Path, options: tuple[str, ...], expected: list[str]
) -> None:
    for node in range(2):
        (tmp_path / f"{node}").write_text(f"of node {node}\n")
        with (tmp_path / f"{node}").open() as given:
            words = (*options, "sh", "-c", 'while read -r line; do echo "$RANK $line"; done')
            launchers.start(2, node, 2, *words, given=given)
    codes, outputs, errors = launchers.finish()
    assert (codes, errors) == ([0, 0], ["", ""])
    assert sorted("".join(outputs).splitlines()) == expected


def test_each_node_refuses_a_rank_that_is_not_there(launchers: Launchers) -> None:
    for node in range(2):
        launchers.start(2, node, 2, "--stdin", "7", "cat")
    codes, _, errors = launchers.finish()
    assert codes == [2, 2]
    assert "--stdin 7: expected a rank, 0 to 3, all, or none" in errors[0]


def test_many_losses_do_not_make_a_message_too_long() -> None:
    endings = {node: Ending(ranks=90, without=["x" * 200] * 90) for node in range(1000)}
    whole = Ending.of_all(endings, 0, None)
    assert whole.line.endswith("; 89900 more")
    assert len(json.dumps(vars(whole))) < LONGEST


def test_whose_failure_is_blamed() -> None:
    fine, lost = Ending(ranks=2), Ending(ranks=2, survivors=1, reason="rank 0 lost rank 3", code=1, failed_by_loss=True)
    cause = Ending(ranks=2, survivors=1, reason="rank 3 died", code=9)
    other = Ending(ranks=2, survivors=0, reason="rank 5 died", code=8)
    whole = Ending.of_all({0: lost, 1: cause, 2: other}, 0, None)
    assert (whole.code, whole.line, whole.failed) == (9, "rank 3 died; 2 ranks were ended", True)
    assert Ending.of_all({0: lost, 1: cause, 2: other}, 2, None).code == 8
    assert Ending.of_all({0: fine, 1: lost}, 1, None).line == "rank 0 lost rank 3; 1 rank was ended"
    assert Ending.of_all({0: fine, 1: cause}, 1, 15).code == 143
    assert (Ending.of_all({0: fine, 1: fine}, 0, None).code, Ending.of_all({0: fine}, 0, None).line) == (0, "")


# ---- the options ----

NODES = ["--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:29500", "-n", "2"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nnodes", "2", "--rendezvous", "a:1", "-n", "1"], "--nnodes 2: expected --node-rank as well"),
        (["--nnodes", "2", "--node-rank", "1", "-n", "1"], "--nnodes 2: expected --rendezvous as well"),
        (["--nnodes", "2", "-n", "1"], "--nnodes 2: expected --node-rank and --rendezvous as well"),
        (["--node-rank", "1", "-n", "1"], "--node-rank 1: expected --nnodes and --rendezvous as well"),
        (["--node-rank", "0", "-n", "1"], "--node-rank 0: expected --nnodes and --rendezvous as well"),
        (["--rdzv-endpoint", "a:1", "-n", "1"], "--rendezvous a:1: expected --nnodes and --node-rank as well"),
        (["--nnodes", "1", "--node-rank", "1", "-n", "1"], "--node-rank 1: expected 0, because of --nnodes 1"),
        (["--nnodes=1:4", "-n", "1"], "expected a number of nodes of at least 1, got '1:4'"),
        (["--nproc_per_node=gpu"], "expected a number of ranks of at least 1, got 'gpu'"),
        (
            ["--nproc-per-node", "2", "--master_addr=a", "--master_port=1"],
            "--master-addr: expected --rendezvous HOST:PORT",
        ),
        (["--nproc-per-node", "2", "--rdzv-backend", "c10d"], "--rdzv-backend: expected --rendezvous HOST:PORT alone"),
        (["-np", "2"], "-np: expected -n"),
        (["--nnodes", "2", "--node-rank", "2", "--rendezvous", "a:1", "-n", "1"], "--node-rank 2: expected 0 to 1"),
        ([*NODES, "--restarts", "1"], "--restarts with --nnodes 2: a rank can be started again only in a job"),
        ([*NODES, "--backend", "shm"], "backend='shm' with --nnodes 2: expected one that reaches other hosts"),
        (["--nnodes", "0", "-n", "1"], "expected a number of nodes of at least 1, got '0'"),
        (["--node-rank", "-1", "-n", "1"], "--node-rank"),
        (["--rendezvous", "host", "-n", "1"], "expected HOST:PORT, an address of node 0's host, got 'host'"),
        (["--rendezvous", "host:99999", "-n", "1"], "an address of node 0's host, got 'host:99999'"),
        (["--rendezvous-timeout", "0", "-n", "1"], "--rendezvous-timeout: expected a number of seconds above 0"),
    ],
)
def test_options_that_do_not_fit(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main([*words, "true"])
    except SystemExit as end:
        code = end.code
    assert code == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


def test_the_words_of_torchrun(launchers: Launchers) -> None:
    for node in range(2):
        words = [
            "--nnodes=2",
            "--nproc_per_node=2",
            f"--node_rank={node}",
            f"--rdzv_endpoint=127.0.0.1:{launchers.port}",
        ]
        launchers.processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "rankwise", "run", *words, "sh", "-c", "echo $RANK of $WORLD_SIZE"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    codes, outputs, errors = launchers.finish()
    assert codes == [0, 0], errors
    assert sorted("".join(outputs).splitlines()) == [f"{rank} of 4" for rank in range(4)]


def test_one_node_is_an_ordinary_job() -> None:
    show = "echo $RANK $MASTER_ADDR; env | grep -c -e ^RANKWISE_LOCAL -e ^NODE_RANK"
    words = ["--nnodes", "1", "--node-rank", "0", "--rendezvous", "host:1", "-n", "1", "sh", "-c", show]
    run = [sys.executable, "-m", "rankwise", "run", *words]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "RANKWISE_LOCAL_RANK": "3"})
    assert done.stdout == "0 127.0.0.1\n0\n"
