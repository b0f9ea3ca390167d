"""Arrays in device memory, on a backend that reaches it (nccl over the double of nccl4py) and on others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankwise as rw
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.work import Work
from rankwise.group.group import Group
from rankwise.testing import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
from cuda_arrays import STREAM, CudaArray, CudaTensor, cuda_tensor, pretend_cuda
from test_nccl import doubled

Make = Callable[[Any], Any]

# What each operation is given on a rank, beside the array, and what it gives of n ranks' arrays, x[rank].
# The array of rank r is x[r]; None where a rank receives nothing.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[Any, int, int], Any]]] = {
    "all_reduce": (lambda g, x, **o: g.all_reduce(x, **o), lambda x, r, n: sum(x)),
    "all_reduce max": (lambda g, x, **o: g.all_reduce(x, "max", **o), lambda x, r, n: np.max(x, axis=0)),
    "broadcast": (lambda g, x, **o: g.broadcast(x, 1, **o), lambda x, r, n: x[1]),
    "reduce": (lambda g, x, **o: g.reduce(x, 1, **o), lambda x, r, n: sum(x) if r == 1 else None),
    "gather": (lambda g, x, **o: g.gather(x, 1, **o), lambda x, r, n: np.array(x) if r == 1 else None),
    "all_gather": (lambda g, x, **o: g.all_gather(x, **o), lambda x, r, n: np.array(x)),
    "scatter": (lambda g, x, **o: g.scatter(x, 1, **o), lambda x, r, n: np.array_split(x[1], n)[r]),
    "reduce_scatter": (lambda g, x, **o: g.reduce_scatter(x, **o), lambda x, r, n: np.array_split(sum(x), n)[r]),
    "all_to_all": (
        lambda g, x, **o: g.all_to_all(x, **o),
        lambda x, r, n: np.concatenate([np.array_split(one, n)[r] for one in x]),
    ),
    "all_gather_v": (lambda g, x, **o: g.all_gather_v(x, **o), lambda x, r, n: np.concatenate(x)),
    "gather_v": (lambda g, x, **o: g.gather_v(x, 0, **o), lambda x, r, n: np.concatenate(x) if r == 0 else None),
    "scatter_v": (
        lambda g, x, **o: g.scatter_v(x, [4] + [0] * (g.world_size - 2) + [2], 0, **o),
        lambda x, r, n: x[0][: 4 if r == 0 else 0] if r < n - 1 else x[0][4:],
    ),
    "reduce_scatter_v": (
        lambda g, x, **o: g.reduce_scatter_v(x, [4] + [0] * (g.world_size - 2) + [2], **o),
        lambda x, r, n: sum(x)[: 4 if r == 0 else 0] if r < n - 1 else sum(x)[4:],
    ),
    "reduce_scatter by a function": (
        lambda g, x, **o: g.reduce_scatter(x, lambda a, b: a + b, **o),
        lambda x, r, n: np.array_split(sum(x), n)[r],
    ),
    "scan": (lambda g, x, **o: g.scan(x, **o), lambda x, r, n: sum(x[: r + 1])),
    "exscan": (lambda g, x, **o: g.exscan(x, **o), lambda x, r, n: sum(x[:r]) if r else 0 * x[0]),
    "a function": (lambda g, x, **o: g.all_reduce(x, lambda a, b: a + b, **o), lambda x, r, n: sum(x)),
}
IN_PLACE = ("all_reduce", "all_reduce max", "broadcast", "reduce", "a function")


def contents(rank: int) -> np.ndarray[Any, Any]:
    return np.arange(12.0, dtype=np.float32).reshape(6, 2) * (rank + 1)


def host(x: Any) -> Any:
    return x.get() if isinstance(x, CudaArray) else np.asarray(x.as_subclass(torch.Tensor))


def check_operation(group: Group, name: str, make: Make, host: Callable[[Any], Any]) -> None:
    """Blocking and started, with the library's result and with the caller's. host: an array's contents."""
    call, expected = OPERATIONS[name]
    n, me = group.world_size, group.rank
    want = expected([contents(rank) for rank in range(n)], me, n)
    for async_op in (False, True):
        for own_out in (False,) if name in IN_PLACE else (False, True):
            x = make(contents(me))
            options: dict[str, Any] = {"async_op": async_op}
            if own_out and want is not None:
                options["out"] = make(np.zeros(want.shape, np.float32))
            got = call(group, x, **options)
            if async_op:
                assert isinstance(got, Work)
                got = got.wait()
            if want is None:
                assert got is None
                continue
            assert type(got) is type(x)
            assert host(got).tobytes() == np.ascontiguousarray(want, np.float32).tobytes()
            if own_out:
                assert got is options["out"]
            if name in IN_PLACE:
                assert got is x


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("make", [CudaArray, cuda_tensor], ids=["cupy", "torch"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_takes_device_memory(name: str, make: Make, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are on the device too, also for started operations and with out=."""
    pretend_cuda(monkeypatch)
    calls: list[Any] = []

    def body(group: Group) -> None:
        check_operation(group, name, make, host)

    run_ranks(body, n, backend=doubled(n, everywhere=True, calls=calls))
    if name in ("all_reduce", "all_gather"):
        waited = [call for call in calls if call[0] == "cudaEventRecord" and call[2] == STREAM]
        assert len(waited) >= 2 * n, "the communicator's stream did not wait for the program's"


@pytest.mark.parametrize("make", [CudaArray, cuda_tensor], ids=["cupy", "torch"])
def test_messages_of_device_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch)

    def body(group: Group) -> None:
        other = 1 - group.rank
        sending = group.isend(make(contents(group.rank)), other, 9)
        assert (host(group.recv(make(np.zeros((6, 2), np.float32)), other, 9)) == contents(other)).all()
        sending.wait()
        (got,) = group.batch([(make(contents(group.rank)), other)], [(make(np.zeros((6, 2), np.float32)), other)])
        assert (host(got) == contents(other)).all()

    run_ranks(body, 2, backend=doubled(2, everywhere=True))


def test_non_contiguous_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch)

    def body(group: Group) -> None:
        for async_op in (False, True):
            whole = cuda_tensor(np.ones((4, 4), np.float32))
            part = whole[:, ::2]
            got = group.all_reduce(part, async_op=async_op)
            if isinstance(got, Work):
                got = got.wait()
            assert got is part
            assert host(whole).tolist() == [[2, 1, 2, 1]] * 4

    run_ranks(body, 2, backend=doubled(2, everywhere=True))


@pytest.mark.parametrize("make", [CudaArray, cuda_tensor], ids=["cupy", "torch"])
@pytest.mark.parametrize("name", [*OPERATIONS, "send", "recv", "batch", "minloc"])
def test_other_backends_refuse_it_by_name(name: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is sent, so the group continues."""
    pretend_cuda(monkeypatch)
    more: dict[str, Callable[[Group, Any], Any]] = {
        "send": lambda g, x: g.send(x, 1 - g.rank),
        "recv": lambda g, x: g.recv(x, 1 - g.rank),
        "batch": lambda g, x: g.batch([(x, 1 - g.rank)]),
        "minloc": lambda g, x: g.all_reduce(x, "minloc"),
    }
    more["scatter"] = lambda g, x: g.scatter(x)
    more["scatter_v"] = lambda g, x: g.scatter_v(x, [6])
    call = more[name] if name in more else OPERATIONS[name][0]

    def one_group(group: Group) -> Group:
        """Of those that scatter only one rank gives; in a group of its own no other waits for it."""
        part = group.split(group.rank) if name in ("scatter", "scatter_v") else group
        assert part is not None
        return part

    def body(group: Group) -> None:
        words = r"device memory .* by the threads backend: .*copy .* host.*backend='nccl'"
        part = one_group(group)
        with pytest.raises(UnsupportedError, match=words):
            call(part, make(contents(group.rank)))
        assert group.all_reduce(1) == 2

    run_ranks(body, 2, backend="threads")


def test_a_result_elsewhere_than_its_input_is_refused() -> None:
    def body(group: Group) -> None:
        with pytest.raises(ValueError, match=r"out: expected memory of the host, as x has, got memory of CUDA"):
            group.all_gather(np.ones(2), out=CudaArray(np.ones((2, 2))))
        # The others count on this rank by then: the error comes after the operation.
        x = np.ones(2) if group.rank == 0 else None
        if group.rank == 0:
            group.scatter(x)
        else:
            with pytest.raises(UnsupportedError, match="threads backend"):
                group.scatter(x, out=CudaArray(np.ones(1)))
        assert group.all_reduce(1) == 2

    run_ranks(body, 2, backend="threads")


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (CudaArray(np.ones((4, 4))[:, ::2]), "contiguous device memory"),
        (CudaArray(np.ones(2).astype(">f8")), "are not supported"),
        (CudaArray(np.array(["a"])), "are not supported"),
    ],
)
def test_arrays_that_do_not_match(array: CudaArray, why: str) -> None:
    def body(group: Group) -> None:
        with pytest.raises(TypeError, match=why):
            group.all_reduce(array)

    run_ranks(body, 1, backend=doubled(1, everywhere=True))


def test_a_reducer_of_tensors_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events are CUDA's, between the program's stream and the communicator's."""
    pretend_cuda(monkeypatch)
    calls: list[Any] = []

    def body(group: Group) -> None:
        shapes = [(3,), (40, 40), (2, 2)]
        reducer = rw.overlap.GradientReducer(
            [cuda_tensor(np.zeros(shape, np.float32)) for shape in shapes], group, 4096
        )
        for step in range(3):
            for number in reversed(range(len(shapes))):
                reducer.mark_ready(number, cuda_tensor(np.full(shapes[number], float(group.rank + step), np.float32)))
            for shape, gradient in zip(shapes, reducer.wait_and_unpack(), strict=True):
                assert isinstance(gradient, CudaTensor)
                assert gradient.shape == shape
                assert (host(gradient) == 0.5 + step).all()

    run_ranks(body, 2, backend=doubled(2, everywhere=True, calls=calls))
    assert ("cudaStreamWaitEvent", STREAM) in [call[:2] for call in calls], "the program's stream waits for the result"


def test_data_parallel_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch)

    def body(group: Group) -> None:
        module = torch.nn.Linear(3, 2)
        for name, parameter in list(module.named_parameters()):
            data = torch.full_like(parameter, float(group.rank)).as_subclass(CudaTensor)
            setattr(module, name, torch.nn.Parameter(data))
        model = rw.overlap.data_parallel(module, group)
        assert all((host(parameter.detach()) == 0).all() for parameter in module.parameters())
        for _ in range(2):
            module.zero_grad()
            model(cuda_tensor(np.full((1, 3), float(group.rank), np.float32))).sum().backward()
            assert module.weight.grad is not None
            assert (host(module.weight.grad) == 0.5).all()

    run_ranks(body, 2, backend=doubled(2, everywhere=True))
