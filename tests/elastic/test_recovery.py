"""run: training that loses ranks at every kind of moment ends with the numbers of an undisturbed one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks

RUN = [sys.executable, "-m", "rankwise", "run", "--timeout", "60"]

# Each rank adds the sum of all ranks' numbers, which depend on the step, to an array and a list of its own. `deeds`
# says what happens in which process of a rank at which moment: {(rank, restart, "step 3"): kill}.
PROGRAM = """
import os, signal, sys, time
import numpy as np

rank, restart = int(os.environ["RANKWISE_RANK"]), int(os.environ.get("RANKWISE_RESTART", "0"))

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def fail():
    raise ValueError("bad")

def kill_inside():  # init
    import threading
    from rankwise.observe.jobs import jobs_of

    def watch():
        while not ((view := jobs_of(os.getpid())[0].ranks()[rank]).pid == os.getpid() and view.state.inside):
            time.sleep(0.01)
        kill()

    threading.Thread(target=watch, daemon=True).start()

def set_flag():
    open(sys.argv[0] + ".flag", "w").close()

def wait_flag():
    while not os.path.exists(sys.argv[0] + ".flag"):
        time.sleep(0.01)

deeds = eval(sys.argv[1])

def moment(name):
    deeds.get((rank, restart, name), lambda: None)()

moment("start")
import rankwise as rw
from rankwise.elastic import memory
moment("imported")
moment("init")
group = rw.init()
moment("init done")
x, tail = np.zeros(50_000), np.zeros(3)
state = rw.elastic.State(arrays={"x": x, "tail": tail}, objects={"history": []})
print("rank", rank, "restart", restart, "finds", *state.commits)

if any(name.startswith("commit") for of, life, name in deeds if (of, life) == (rank, restart)):
    real = np.copyto
    def copyto(kept, buffer):
        if kept.size == tail.nbytes:  # the last array of a commit
            moment(f"commit {state.step + 1}")
        real(kept, buffer)
    np.copyto = copyto

if (rank, restart, "load") in deeds:
    real_load = state.load
    def load(number):
        moment("load")
        real_load(number)
    state.load = load

@rw.elastic.run(state)
def train(group, state, most, *, scale):
    assert rw.all_reduce(1) == group.world_size  # the group is the default group
    while state.step < most:
        moment(f"step {state.step}")
        total = group.all_reduce(scale * (state.step + group.ranks[group.rank]))
        moment(f"after {state.step}")
        x[:] += total
        tail[:] = x[:3]
        state.objects["history"].append(total)
        state.commit()
    moment("end")
    return group

group = train(20, scale=2)
moment("over")
assert (x == x[0]).all() and (tail == x[0]).all() and sum(state.objects["history"]) == x[0]
print("rank", rank, "of", group.world_size, "ends with", int(x[0]))
for one in state.resumptions:
    print("rank", rank, "lost", one.lost, "at", one.reached, "on from", one.resumed)
"""


# A library that hides the text and the type of rankwise's error.
WRAPPED = """
def wrapped(group, x):
    try:
        return group.all_reduce(x)
    except rw.RankwiseError as error:
        raise RuntimeError("the library failed") from error

@rw.elastic.run"""


def train(
    tmp_path: Path, deeds: str, n: int = 3, options: tuple[str, ...] = ("--restarts", "3")
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*RUN, "-n", str(n), *options, tmp_path / "program.py", deeds]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def total(n: int) -> int:
    return sum(2 * (step * n + sum(range(n))) for step in range(20))


def check_all_ended(done: subprocess.CompletedProcess[str], n: int = 3) -> list[str]:
    """Every rank ended with the numbers of an undisturbed run; what they print otherwise."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    ends = [f"rank {rank} of {n} ends with {total(n)}" for rank in range(n)]
    assert sorted(line for line in lines if "ends with" in line) == ends, done.stdout + done.stderr
    return [line for line in lines if "ends with" not in line]


def test_nothing_is_lost(tmp_path: Path) -> None:
    for options in ((), ("--restarts", "1")):
        done = train(tmp_path, "{}", options=options)
        assert sorted(check_all_ended(done)) == [f"rank {rank} restart 0 finds" for rank in range(3)]
        assert done.stderr == ""


def test_a_replacement_goes_on_from_its_commit(tmp_path: Path) -> None:
    done = train(tmp_path, "{(1, 0, 'after 7'): kill}")
    lines = check_all_ended(done)
    assert "rank 1 restart 1 finds 7 6" in lines
    for rank in (0, 2):
        assert f"rank {rank} lost {{1: 'was killed by SIGKILL'}} at 7 on from 7" in lines
    assert done.stderr.splitlines()[-1] == "rankwise: finished; started again: rank 1"


def test_a_kill_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """The others may have made theirs already; then they go one step back."""
    lines = check_all_ended(train(tmp_path, "{(2, 0, 'commit 8'): kill, (0, 0, 'commit 12'): kill}"))
    assert "rank 2 restart 1 finds 7" in lines
    assert "rank 0 restart 1 finds 11" in lines
    for line in lines:
        if " lost " in line:
            reached, resumed = map(int, re.findall(r"at (\d+) on from (\d+)", line)[0])
            assert resumed in (7, 11)
            assert reached in (resumed, resumed + 1)


MOMENTS = {
    "two at once": "{(0, 0, 'step 5'): kill, (1, 0, 'step 5'): kill}",
    "during recovery": (
        "{(0, 0, 'step 5'): kill, (1, 0, 'step 5'): kill, (2, 0, 'load'): lambda: restart or state.step and kill()}"
    ),
    "after init": "{(1, 0, 'step 3'): kill, (1, 1, 'init done'): kill}",
    "before it goes on": "{(1, 0, 'step 3'): kill, (1, 1, 'load'): kill, (2, 0, 'step 4'): kill}",
    "while starting": "{(0, 0, 'step 3'): kill, (0, 1, 'start'): kill, (0, 2, 'imported'): kill}",
    "in init": (
        "{(1, 0, 'step 3'): kill, (1, 1, 'init'): kill_inside, (1, 2, 'start'): set_flag, (2, 0, 'step 3'): wait_flag}"
    ),
    "before all meet": "{(1, 0, 'start'): kill}",
    "at first": "{(1, 0, 'step 0'): kill, (2, 0, 'commit 0'): kill}",
    "at last": "{(0, 0, 'end'): kill, (1, 0, 'end'): kill}",
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_ranks_are_lost_at_any_moment(tmp_path: Path, moment: str) -> None:
    check_all_ended(train(tmp_path, MOMENTS[moment]))


def test_all_but_one_are_lost(tmp_path: Path) -> None:
    deeds = ", ".join(f"({rank}, 0, 'after {5 + rank // 2}'): kill" for rank in range(1, 4))
    check_all_ended(train(tmp_path, f"{{{deeds}}}", n=4), 4)


def test_all_are_lost(tmp_path: Path) -> None:
    """Even then each finds its own commits."""
    deeds = ", ".join(f"({rank}, 0, 'after 5'): kill" for rank in range(3))
    lines = check_all_ended(train(tmp_path, f"{{{deeds}}}"))
    assert [line for line in lines if "restart 1" in line]


def test_the_others_go_on_without_the_lost(tmp_path: Path) -> None:
    done = train(tmp_path, "{(0, 0, 'after 4'): kill, (2, 0, 'step 9'): kill}", options=("--keep-going",))
    assert done.returncode == 0, done.stderr
    (end,) = [line for line in done.stdout.splitlines() if "ends with" in line]
    steps = [
        sum(2 * (step + rank) for rank in (range(3) if step < 4 else (1, 2) if step < 9 else (1,)))
        for step in range(20)
    ]
    assert end == f"rank 1 of 1 ends with {sum(steps)}"
    said = re.sub(r" \(pid \d+\)", "", done.stderr.splitlines()[-1])
    assert said.startswith("rankwise: finished without rank 0, which was killed by SIGKILL after all_reduce #")
    assert "; rank 2, which was killed by SIGKILL after barrier #" in said
    lost = [line for line in done.stdout.splitlines() if " lost " in line]
    assert lost == [
        "rank 1 lost {0: 'was killed by SIGKILL'} at 4 on from 4",
        "rank 1 lost {2: 'was killed by SIGKILL'} at 9 on from 9",
    ]


def test_the_others_go_on_without_a_rank_that_is_given_up(tmp_path: Path) -> None:
    deeds = "{(1, life, 'step 4'): kill for life in range(9)}"
    done = train(tmp_path, deeds, options=("--restarts", "2", "--keep-going"))
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(" ends")[0] for line in done.stdout.splitlines() if "ends with" in line) == [
        "rank 0 of 2",
        "rank 2 of 2",
    ]
    assert "after 2 restarts; 2 ranks go on" in done.stderr


@pytest.mark.slow
def test_a_rank_that_is_given_up_ends_the_job(tmp_path: Path) -> None:
    done = train(tmp_path, "{(1, life, 'step 4'): kill for life in range(9)}", options=("--restarts", "2"))
    assert done.returncode == 128 + signal.SIGKILL
    last = done.stderr.splitlines()[-1]
    assert re.match(r"rankwise: rank 1 \(pid \d+\) was killed by SIGKILL .*, after 2 restarts; ", last), last


def test_a_rank_that_is_killed_after_the_function_is_not_started_again(tmp_path: Path) -> None:
    """The others could not run the function again; they do what is left, although it takes longer than the grace."""
    deeds = "{(1, 0, 'over'): kill, (0, 0, 'over'): lambda: time.sleep(1.5)}"
    done = train(tmp_path, deeds, options=("--restarts", "3"))
    assert done.returncode == 128 + signal.SIGKILL
    ends = sorted(line.split(" ends")[0] for line in done.stdout.splitlines() if "ends with" in line)
    assert ends == ["rank 0 of 3", "rank 2 of 3"]
    how = r"rank 1 \(pid \d+\)(, which)? was killed by SIGKILL after agree"
    news, last = done.stderr.splitlines()
    assert re.fullmatch(rf"rankwise: {how}, after the ranks had finished elastic.run(; .* on)?", news), news
    assert re.fullmatch(rf"rankwise: finished without {how}", last), last


@pytest.mark.slow
def test_an_error_of_the_function_is_not_a_loss(tmp_path: Path) -> None:
    done = train(tmp_path, "{(1, life, 'step 4'): fail for life in range(9)}", options=("--restarts", "1"))
    assert done.returncode == 1
    assert done.stderr.splitlines().count("ValueError: bad") == 2
    assert "finds 4 3" in done.stdout


def test_an_error_whose_text_names_a_loss_is_not_one(tmp_path: Path) -> None:
    deed = """{(1, 0, 'step 3'): lambda: exec("raise RuntimeError('PeerLostError: not true')")}"""
    done = train(tmp_path, deed, options=())
    assert done.returncode == 1
    assert "RuntimeError: PeerLostError: not true at <string>:1" in done.stderr.splitlines()[-1]


def test_an_error_that_follows_from_a_loss_calls_the_function_again(tmp_path: Path) -> None:
    """As when a library wraps rankwise's error in its own, with any text."""
    program = PROGRAM.replace("total = group.all_reduce(", "total = wrapped(group, ").replace(
        "@rw.elastic.run", WRAPPED
    )
    (tmp_path / "program.py").write_text(program)
    command = [*RUN, "-n", "3", "--restarts", "1", tmp_path / "program.py", "{(1, 0, 'step 7'): kill}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "rank 0 lost {1: 'was killed by SIGKILL'} at 7 on from 7" in check_all_ended(done)


def test_abort_calls_the_function_again(tmp_path: Path) -> None:
    """The group fails on all ranks, although none is lost."""
    done = train(tmp_path, "{(1, 0, 'step 6'): lambda: state.resumptions or rw.elastic and group.abort('odd')}")
    lines = check_all_ended(done)
    assert {line for line in lines if " lost " in line} == {
        f"rank {rank} lost {{}} at 6 on from 6" for rank in range(3)
    }


def test_a_function_that_fails_every_time_is_not_called_for_ever() -> None:
    def body(group: Group) -> tuple[int, int]:
        state = rw.elastic.State(arrays={"x": np.zeros(3)})
        calls = 0

        @rw.elastic.run(state, group=group)
        def work(group: Group, state: rw.elastic.State) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:  # which lets it be called as often again
                state.commit()
                group.barrier()
            if group.rank == 0:
                group.abort("the loss is not a number")
            group.barrier()

        with pytest.raises(rw.PeerLostError, match="the loss is not a number"):
            work()
        return calls, state.step

    assert run_ranks(body, 2, backend="threads") == [(14, 1)] * 2


@pytest.mark.slow  # a minute
def test_a_rank_that_hangs_is_left_out(tmp_path: Path) -> None:
    options = ("--keep-going", "--timeout", "2")
    done = train(tmp_path, "{(2, 0, 'step 6'): lambda: time.sleep(60)}", options=options)
    ends = sorted(line for line in done.stdout.splitlines() if "ends with" in line)
    assert [end.split(" ends")[0] for end in ends] == ["rank 0 of 2", "rank 1 of 2"]


def test_the_record_names_a_rank_that_was_left_out_behind_a_pending_operation() -> None:
    """The barrier that fails waits for the operation, and does not know for whom that waits."""
    ready, over = threading.Barrier(2), threading.Barrier(3)

    def body(group: Group) -> list[list[int]]:
        state = rw.elastic.State(arrays={"x": np.zeros(3)})

        def work(group: Group, state: rw.elastic.State) -> None:
            if group.world_size == 3 and group.rank == 1:
                over.wait(60)
                raise KeyboardInterrupt
            if group.world_size == 3:
                ready.wait(60)
                group.timeout = 0.7
            else:
                group.timeout = 60
            group.all_reduce(np.ones(3), async_op=True)
            group.barrier()

        try:
            rw.elastic.run(state, group=group)(work)()
            over.wait(60)
        except KeyboardInterrupt:
            pass
        return [list(one.lost) for one in state.resumptions]

    first, _, last = run_ranks(body, 3, backend="threads")
    assert first == last == [[1]]


def test_no_common_step_is_an_error_of_all() -> None:
    def body(group: Group) -> str:
        state = rw.elastic.State(arrays={"x": np.zeros(3)})
        for number in range(3 * group.rank, 3 * group.rank + 2):
            state.save(number)
        with pytest.raises(rw.RankwiseError) as error:
            rw.elastic.run(state, group=group)(lambda group, state: None)()
        return str(error.value)

    said = "there is no step that all ranks have committed: rank 0: 1 and 0; rank 1: 4 and 3"
    assert run_ranks(body, 2, backend="threads") == [said, said]


def test_the_newest_common_step_is_taken_up() -> None:
    def body(group: Group) -> list[float]:
        x = np.zeros(1)
        state = rw.elastic.State(arrays={"x": x})
        for number in range(4 + group.rank):
            x[0] = number
            state.save(number)
        return rw.elastic.run(state, group=group)(lambda group, state: [x[0], state.step, *state.commits])()

    assert run_ranks(body, 2, backend="threads") == [[3, 3, 3, 2], [3, 3, 3]]
