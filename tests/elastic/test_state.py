"""State: what it commits comes back, also to another process, and whatever happens in the middle of a commit."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.elastic import State, memory
from rankwise.system.settings import STATE_MEMFD


@pytest.fixture
def inherited(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The memory that a launcher gives to a rank and its replacements."""
    fd = os.memfd_create(STATE_MEMFD)
    monkeypatch.setenv("RANKWISE_STATE_FD", str(fd))
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=np.int8)[::2],
        np.arange(6, dtype=">i4"),
        np.array(3.5),
        np.zeros((0, 4)),
        np.array([True, False]),
        np.arange(300_000, dtype=np.complex64),
    ],
    ids=["2-d", "strided", "big-endian", "0-d", "empty", "bool", "large"],
)
def test_an_array_comes_back(array: np.ndarray[Any, Any]) -> None:
    before = array.copy()
    state = State(arrays={"x": array, "y": np.ones(3)})
    state.commit()
    array[...] = 0
    state.restore()
    np.testing.assert_array_equal(array, before)


def test_objects_come_back() -> None:
    state = State(objects={"losses": [1.0], "text": "one"})
    state.commit()
    state.objects["losses"].append(2.0)
    state.objects["more"] = 3
    del state.objects["text"]
    state.restore()
    assert state.objects == {"losses": [1.0], "text": "one"}


def test_objects_may_be_of_any_size(inherited: int) -> None:
    """Each slot's objects are longer than its pieces, and once longer, once shorter than before."""
    state = State(arrays={"x": np.arange(3.0)})
    contents = [os.urandom(length) for length in (10, 5 << 20, (3 << 20) + 1, 0, 1 << 20)]
    for content in contents:
        state.objects["content"] = content
        state.commit()
        state.objects["content"] = b"else"
        state.restore()
        assert state.objects["content"] == content
    state.load(state.commits[1])
    assert state.objects["content"] == contents[-2]


class Optimizer:
    def __init__(self) -> None:
        self.momentum = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"momentum": self.momentum}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.momentum = state["momentum"]


def test_an_object_with_a_state_dict_stays_the_same_object() -> None:
    optimizer = Optimizer()
    state = State(objects={"optimizer": optimizer})
    optimizer.momentum = 0.5
    state.commit()
    optimizer.momentum = 0.7
    state.restore()
    assert state.objects["optimizer"] is optimizer
    assert optimizer.momentum == 0.5


def test_tensors_and_a_torch_optimizer() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    half = torch.arange(4).to(torch.bfloat16)
    state = State(arrays={"half": half, **model.state_dict()}, objects={"optimizer": optimizer})

    def step() -> Any:
        optimizer.zero_grad()
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        return model.weight.detach().clone()

    step()
    state.commit()
    second = step()
    half.zero_()
    state.restore()
    assert half.tolist() == [0, 1, 2, 3]
    assert torch.equal(step(), second), "the weights or the optimizer's moments differ"


def test_the_last_two_commits_are_kept() -> None:
    x = np.zeros(1)
    state = State(arrays={"x": x})
    assert (state.step, state.commits) == (0, ())
    for _ in range(3):
        x += 1
        state.commit()
    assert (state.step, state.commits) == (3, (3, 2))
    state.load(2)
    assert (x[0], state.step, state.commits) == (2, 2, (2,)), "a commit that no longer counts is left"
    x[0] = 7
    state.commit()
    assert state.commits == (3, 2)
    state.load(2)
    assert x[0] == 2


@pytest.mark.parametrize("page", [4 << 10, 16 << 10, 64 << 10])
def test_a_replacement_takes_up_the_commits(page: int, inherited: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PAGE", page)
    x = np.arange(3.0)
    state = State(arrays={"x": x}, objects={"epoch": 4})
    state.commit()
    del state
    places = [os.pread(inherited, x.nbytes, 2 * page), os.pread(inherited, x.nbytes, 3 * page)]
    assert x.tobytes() in places, "after the pages of the header and of the description"
    x = np.zeros(3)
    state = State(arrays={"x": x}, objects={"epoch": 0})
    assert state.commits == (1,)
    state.restore()
    assert (x.tolist(), state.objects["epoch"], state.step) == ([0, 1, 2], 4, 1)


def test_what_interrupts_a_commit_leaves_the_ones_before(inherited: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kill does: between any two steps of the commit there is a commit to go back to."""
    x, y = np.zeros(3), np.zeros(3)
    state = State(arrays={"x": x, "y": y}, objects={"n": 0})
    for n in (1, 2):
        x[:] = y[:] = state.objects["n"] = n
        state.commit()
    x[:] = y[:] = state.objects["n"] = 3

    calls = 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > survived:
            raise KeyboardInterrupt
        return real(*args)

    for module, name, most in ((np, "copyto", 0), (np, "copyto", 1), (memory, "_write", 0)):
        calls, survived, real = 0, most, getattr(module, name)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                state.commit()
        assert (state.commits, state.step) == ((2,), 2)
    del state
    state = State(arrays={"x": x, "y": y}, objects={"n": 0})
    state.restore()
    assert (x[0], y[0], state.objects["n"], state.step) == (2, 2, 2, 2)
    x[:] = 3
    state.commit()
    assert state.commits == (3, 2)


KILLED = """
import numpy as np, rankwise as rw
x = np.zeros(400_000)
state = rw.elastic.State(arrays={"x": x}, objects={})
while True:
    x += 1
    state.objects["text"] = "x" * int(x[0])
    state.commit()
    print(state.step, flush=True)
"""


def test_a_kill_in_the_middle_leaves_a_whole_commit(inherited: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, pass_fds=[inherited])
    assert process.stdout is not None
    seen = 0
    for _ in range(40):
        seen = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    seen = int(rest[-1]) if rest else seen
    process.wait()
    process.stdout.close()
    x = np.zeros(400_000)
    state = State(arrays={"x": x}, objects={})
    assert state.commits[0] in (seen, seen + 1)
    for number in state.commits:
        state.load(number)
        assert (x == number).all()
        assert state.objects == {"text": "x" * number}


def test_no_room_is_an_error_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros(1 << 20)
    monkeypatch.setattr(memory, "available_memory", lambda: 5 << 20)
    said = r"needs 17 MiB of shared memory, 5 MiB are available"
    with pytest.raises(MemoryError, match=said):
        State(arrays={"x": x})
    state = State(arrays={"x": x[:3]}, objects={"text": ""})
    state.commit()
    state.objects["text"] = "x" * (8 << 20)
    with pytest.raises(MemoryError, match="needs 9 MiB of shared memory, 5 MiB are available"):
        state.commit()
    assert (state.commits, state.step) == ((1,), 1)


def test_what_cannot_be_pickled_does_no_harm() -> None:
    state = State(objects={"f": 1})
    for _ in range(2):
        state.commit()
    state.objects["f"] = lambda: None
    with pytest.raises(Exception, match="lambda"):
        state.commit()
    assert state.commits == (2, 1)


@pytest.mark.parametrize(
    ("array", "error", "said"),
    [
        (3.0, TypeError, r"arrays\['x'\]: expected an array that can be written in place, got 3.0"),
        (np.frombuffer(b"1234", np.uint8), ValueError, r"arrays\['x'\]: expected a writable array"),
        (np.array(["text"]), TypeError, r"arrays\['x'\]: arrays of dtype"),
        ([1, 2], TypeError, r"arrays\['x'\]: expected an array, a buffer or a number, got list"),
    ],
)
def test_arrays_that_cannot_be_kept(array: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        State(arrays={"x": array})


def _longer(x: bytearray) -> None:
    x.extend(b"more")


def _integers(x: np.ndarray[Any, Any]) -> None:
    x.dtype = np.dtype(np.int64)


def _row(x: np.ndarray[Any, Any]) -> None:
    x.shape = (1, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy's, of changes in place
@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (lambda: bytearray(8), _longer, "expected uint8 of shape (8,), as at the beginning, got uint8 of shape (12,)"),
        (lambda: np.ones(3), _integers, "expected float64 of shape (3,), as at the beginning, got int64 of shape (3,)"),
        (lambda: np.ones(3), _row, "expected float64 of shape (3,), as at the beginning, got float64 of shape (1, 3)"),
    ],
)
def test_an_array_must_keep_its_dtype_and_shape(
    make: Callable[[], Any], change: Callable[[Any], None], said: str
) -> None:
    x = make()
    state = State(arrays={"x": x})
    state.commit()
    change(x)
    before = bytes(x)
    for use in (state.commit, state.restore):
        with pytest.raises(ValueError, match=re.escape(f"arrays['x']: {said}")):
            use()
    assert state.commits == (1,)
    assert bytes(x) == before


class Unreadable:
    """What is pickled by a module that a later process lacks, for example."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("no such module")


def test_a_restore_that_fails_changes_nothing() -> None:
    x = np.zeros(2)
    state = State(arrays={"x": x}, objects={"a": 1, "b": Unreadable()})
    state.commit()
    x += 1
    state.objects["a"] = 2
    with pytest.raises(ImportError, match="no such module"):
        state.restore()
    assert x.tolist() == [1, 1]
    assert state.objects["a"] == 2


def test_a_load_state_dict_that_raises_comes_before_the_arrays_and_the_other_objects() -> None:
    class Refusing:
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, _: dict[str, int]) -> None:
            raise KeyError("momentum")

    x = np.ones(3)
    state = State(arrays={"x": x}, objects={"epoch": 1, "optimizer": Refusing()})
    state.commit()
    x += 1
    state.objects.update(epoch=2, more=3)
    with pytest.raises(KeyError, match="momentum"):
        state.restore()
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert (state.objects["epoch"], state.objects["more"], state.step) == (2, 3, 1)


def test_other_arrays_than_the_lost_rank_had(inherited: int) -> None:
    state = State(arrays={"x": np.zeros(3)})
    state.commit()
    del state
    with pytest.raises(
        ValueError,
        match=r'expected the names, shapes and dtypes of this rank\'s previous State: .*"x": \["float64", 3\]',
    ):
        State(arrays={"x": np.zeros(4)})


def test_one_state_at_a_time(inherited: int) -> None:
    state = State(arrays={"x": np.zeros(3)})
    with pytest.raises(ValueError, match="this rank has another State: expected one at a time"):
        State()
    state.commit()
    state.close()
    state.close()
    assert os.fstat(inherited).st_size == 0
    assert State(arrays={"y": np.zeros(4)}).commits == ()


def test_a_closed_state_says_so() -> None:
    state = State(arrays={"x": np.zeros(3)})
    with pytest.raises(rw.RankwiseError, match="nothing has been committed"):
        state.restore()
    state.close()
    for call in (state.commit, state.restore):
        with pytest.raises(rw.ClosedError, match="this State has been closed"):
            call()


def test_a_variable_without_its_memory_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process of a rank inherits the variable, but no descriptor, or another one by that number."""
    with open(os.devnull) as other:
        for fd in (other.fileno(), 12345):
            monkeypatch.setenv("RANKWISE_STATE_FD", str(fd))
            state = State(arrays={"x": np.zeros(3)})
            state.commit()
            assert state.commits == (1,)


def test_nothing_is_left_open() -> None:
    gc.collect()  # what earlier tests have left is not freed meanwhile
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        State(arrays={"x": np.zeros(3)}).commit()
    assert os.listdir("/proc/self/fd") == before
