"""data_parallel: a torch module trains on several ranks as it does on one with the whole batch."""

from __future__ import annotations

from typing import Any

import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks

torch: Any = pytest.importorskip("torch")


def network(seed: int) -> Any:
    torch.manual_seed(seed)
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)).double()


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator, dtype=torch.float64), torch.randn(8, 3, generator=generator).double()


def train(model: Any, rank: int, n: int, to_none: bool, steps: int = 5) -> list[Any]:
    """Steps of SGD on this rank's rows; the parameters in the end."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        inputs, labels = (one.chunk(n)[rank] for one in batch(step))
        optimizer.zero_grad(set_to_none=to_none)
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("to_none", "async_op"), [(True, True), (False, True), (True, False)])
def test_training_on_two_ranks_is_training_on_one(to_none: bool, async_op: bool) -> None:
    def ranks(group: Group) -> Any:
        model = rw.overlap.data_parallel(network(seed=group.rank), group, bucket_bytes=300, async_op=async_op)
        return train(model, group.rank, group.world_size, to_none)

    alone = train(network(seed=0), 0, 1, to_none)
    first, second = run_ranks(ranks, 2, backend="shm")
    for mine, theirs, right in zip(first, second, alone, strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-14)


def test_buffers_and_attributes() -> None:
    def ranks(group: Group) -> None:
        torch.manual_seed(group.rank)
        inner = torch.nn.BatchNorm1d(4)
        inner.running_mean.fill_(group.rank + 1)
        model = rw.overlap.data_parallel(inner, group)
        assert (inner.running_mean == 1).all()
        assert model.training
        assert list(model.state_dict()) == [f"module.{name}" for name in inner.state_dict()]
        whole = torch.nn.Sequential(model).eval()  # as it can, since it is a module
        assert not inner.training
        assert next(whole.parameters()) is inner.weight
        whole.train()
        model(torch.randn(5, 4))  # the ranks' own from here on
        means = group.all_gather(inner.running_mean)
        assert not torch.equal(means[0], means[1])
        model.broadcast_buffers()
        assert torch.equal(inner.running_mean, means[0])
        with pytest.raises(AttributeError, match="nothing_such"):
            model.nothing_such()

    run_ranks(ranks, 2, backend="shm")


def test_no_sync_accumulates() -> None:
    def ranks(group: Group) -> None:
        model = rw.overlap.data_parallel(network(0), group)
        alone = network(0)
        rows = [one.chunk(4) for one in batch(0)]
        for again in range(2):
            with model.no_sync():
                torch.nn.functional.mse_loss(model(rows[0][group.rank]), rows[1][group.rank]).backward()
            own = [parameter.grad.clone() for parameter in model.parameters()]
            torch.nn.functional.mse_loss(model(rows[0][2 + group.rank]), rows[1][2 + group.rank]).backward()
            alone.zero_grad()
            for part in range(4):
                (torch.nn.functional.mse_loss(alone(rows[0][part]), rows[1][part]) / 2).backward()
            for number, (mine, right) in enumerate(zip(model.parameters(), alone.parameters(), strict=True)):
                torch.testing.assert_close(mine.grad, right.grad, rtol=1e-12, atol=1e-14)
                assert not torch.equal(own[number], mine.grad)
            model.zero_grad(set_to_none=bool(again))

    run_ranks(ranks, 2, backend="shm")


def test_unused_parameters() -> None:
    """Used by one rank: the other counts as zeros. By none: its gradient stays None."""

    def ranks(group: Group) -> None:
        nn = torch.nn
        parts = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(3)])
        model = rw.overlap.data_parallel(parts, group)
        for _ in range(2):
            model.zero_grad()
            ((parts[0](torch.ones(1, 2)) if group.rank == 0 else 0) + parts[1](torch.ones(1, 2))).sum().backward()
            assert parts[0].weight.grad.tolist() == [[0.5, 0.5]]
            assert parts[1].weight.grad.tolist() == [[1, 1]]
            assert parts[2].weight.grad is None

    run_ranks(ranks, 2, backend="shm")


@pytest.mark.parametrize("async_op", [True, False])
def test_one_rank_uses_less_than_the_other(async_op: bool) -> None:
    """Its buckets are full only at the end, the other rank's long before; both reduce them in the same order."""

    def ranks(group: Group) -> None:
        parts = torch.nn.ModuleList([torch.nn.Linear(2, 1, bias=False) for _ in range(3)])
        model = rw.overlap.data_parallel(parts, group, bucket_bytes=1, async_op=async_op)
        for _ in range(2):
            model.zero_grad()
            used = parts if group.rank == 0 else parts[2:]
            torch.stack([part(torch.ones(1, 2)) for part in used]).sum().backward()
            assert [part.weight.grad.tolist() for part in parts] == [[[0.5, 0.5]], [[0.5, 0.5]], [[1, 1]]]

    run_ranks(ranks, 2, backend="shm")


def test_frozen_parameters_and_removal() -> None:
    def ranks(group: Group) -> None:
        inner = torch.nn.Linear(2, 2)
        inner.bias.requires_grad_(False)
        model = rw.overlap.data_parallel(inner, group)
        assert len(model.reducer.parameters) == 1
        model(torch.full((1, 2), float(group.rank))).sum().backward()
        assert (inner.weight.grad == 0.5).all()
        model.remove()
        model.zero_grad()
        model(torch.full((1, 2), float(group.rank))).sum().backward()
        assert (inner.weight.grad == group.rank).all()

    run_ranks(ranks, 2, backend="shm")


def test_sparse_gradients_are_refused_by_name() -> None:
    def ranks(group: Any) -> None:
        model = rw.overlap.data_parallel(torch.nn.Embedding(4, 2, sparse=True), group)
        with pytest.raises(TypeError, match=r"^grad: expected a dense tensor, .*sparse_coo; .*sparse=False"):
            model(torch.tensor([group.rank])).sum().backward()

    run_ranks(ranks, 2)


class Fails(Exception):
    pass


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("async_op", [True, False])
def test_the_pass_after_one_that_raised(async_op: bool, to_none: bool) -> None:
    """Whatever the failed pass has used and reduced on each rank, the next one leaves the mean of its own gradients."""

    class Two(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False) for _ in range(3)])

        def forward(self, x: Any, used: Any, fails_after: int) -> Any:
            def fail(_: Any) -> None:
                raise Fails

            for place, number in enumerate(used):
                if place == fails_after:
                    x.register_hook(fail)
                x = self.parts[number](x)
            return x.sum()

    def ranks(group: Group) -> None:
        torch.set_num_threads(1)
        me = group.rank
        model = rw.overlap.data_parallel(Two(), group, bucket_bytes=1, async_op=async_op)  # a bucket for each parameter
        x = torch.ones(2, 4) * (me + 1)
        for used in ((0, 1, 2), (0, 1), (2,), (1, 2)):
            for failing in ((0, 1, 2), (2, 1), (1, 2), (0, 2) if me else (0, 1, 2)):
                with pytest.raises(Fails):
                    model(x, failing, len(failing) - 1 if me or len(failing) < 3 else 1).backward()
                model.zero_grad(set_to_none=to_none)
                model(x, used, -1).backward()
                got = [part.weight.grad for part in model.module.parts]
                want = torch.zeros(3, 4, 4)
                for rank in range(2):
                    y = torch.ones(2, 4) * (rank + 1)
                    weights = [part.weight.detach().clone().requires_grad_() for part in model.module.parts]
                    for number in used:
                        y = y @ weights[number].T
                    y.sum().backward()
                    for number in used:
                        want[number] += weights[number].grad / 2
                for number in range(3):
                    if number in used:
                        torch.testing.assert_close(got[number], want[number])
                    else:
                        assert got[number] is None

    run_ranks(ranks, 2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_parameter_that_a_reentrant_checkpoint_shares_with_another_part(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def body(group: Group) -> None:
        model = rw.overlap.data_parallel(torch.nn.Linear(3, 3), group)
        x = torch.ones(2, 3, requires_grad=True)
        loss = model(checkpoint(model, x, use_reentrant=reentrant)).sum()
        if reentrant:
            text = r"^parameter '(weight|bias)' got a second gradient .*use_reentrant=True.*pass use_reentrant=False$"
            with pytest.raises(RuntimeError, match=text):
                loss.backward()
        else:
            loss.backward()
            assert model.module.weight.grad is not None

    run_ranks(body, 2)
