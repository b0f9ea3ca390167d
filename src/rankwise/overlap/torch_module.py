"""data_parallel: a torch module whose backward pass averages its gradients over the ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd import Variable

from rankwise.group.default_group import default_group
from rankwise.group.group import Group
from rankwise.overlap.reducer import BUCKET_BYTES, BucketHook, GradientReducer


class DataParallel(torch.nn.Module):
    """A module that is trained on all ranks of a group; `data_parallel` creates it.

    It is called like the module. As in torch's DistributedDataParallel, the names in its `state_dict` begin with
    "module.", and the attributes of the wrapped module are reached through `module`.

    Attributes:
        module: the wrapped module.
        reducer: the GradientReducer of its gradients.

    Example:
        >>> import torch
        >>> model = rw.overlap.data_parallel(torch.nn.Linear(2, 1, bias=False), group)
        >>> with model.no_sync():
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model(torch.ones(1, 2) * group.rank).sum().backward()
        >>> next(model.parameters()).grad.tolist()
        [[1.5, 1.5]]
    """

    def __init__(
        self, module: torch.nn.Module, group: Group, bucket_bytes: int, hook: BucketHook | None, async_op: bool
    ) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.reducer = GradientReducer(self._trained, group, bucket_bytes, hook=hook, async_op=async_op)
        for tensor in module.parameters():
            group.broadcast(tensor.detach())
        self.broadcast_buffers()
        self._async_op = async_op
        self._syncs = True
        self._pass: weakref.ref[Any] | None = None  # of the function that ends the present backward pass
        self._used = np.zeros(len(self._trained), np.uint8)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook_of(number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self._trained)
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def broadcast_buffers(self) -> None:
        """Copy rank 0's buffers (running means and the like) to every rank, which otherwise keeps its own."""
        for buffer in self.module.buffers():
            self.group.broadcast(buffer.detach())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context whose backward passes only accumulate on this rank. The next pass outside reduces the sums."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def remove(self) -> None:
        """Remove the hooks from the module; later backward passes communicate no gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook_of(self, number: int) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            if not self._syncs:
                return
            if self._pass is None:
                self._begin_backward()
            self._mark(number, parameter)

        return ready

    def _begin_backward(self) -> None:
        if self._used.any():  # a pass has failed; every rank must reduce its buckets, which hold nothing of use
            self._used[:] = 0
            self.reducer.wait_and_unpack()
        # Called at the end of this backward pass, as in torch's own data parallelism; torch drops it if the pass fails.
        end = partial(self._end_of_backward)
        self._pass = weakref.ref(end, self._failed)
        Variable._execution_engine.queue_callback(end)

    def _failed(self, _: object) -> None:
        """The present pass has raised. Nothing may be added to its gradients: some are in buckets, some are missing."""
        self._pass = None
        for parameter in self._trained:
            parameter.grad = None

    def _mark(self, number: int, parameter: torch.Tensor) -> None:
        if self._used[number]:
            name = next(name for name, other in self.module.named_parameters() if other is parameter)
            raise RuntimeError(
                f"parameter {name!r} got a second gradient in one backward pass, when the first was already being "
                "reduced: a part of the module that torch.utils.checkpoint runs with use_reentrant=True shares it with "
                "another part; pass use_reentrant=False"
            )
        self._used[number] = 1
        self.reducer.mark_ready(number, parameter.grad, defer_copy=self._async_op)
        if not self._async_op:
            # torch may now reuse the memory of its gradient, which is still in the cache, for the next one.
            parameter.grad = self.reducer.view(number)

    def _end_of_backward(self) -> None:
        """Mark the parameters that this pass did not use but that have a gradient, accumulated within no_sync."""
        self._pass = None
        for number, parameter in enumerate(self._trained):
            if not self._used[number] and parameter.grad is not None:
                self._mark(number, parameter)
        used = self._used.copy()
        self._used[:] = 0
        gradients = self.reducer.wait_and_unpack()
        self.group.all_reduce(used, "max")  # after the last bucket on every rank, whenever that became full
        for parameter, gradient, anywhere in zip(self._trained, gradients, used, strict=True):
            if anywhere:
                parameter.grad = gradient


def data_parallel(
    model: torch.nn.Module,
    group: Group | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    *,
    hook: BucketHook | None = None,
    async_op: bool = True,
) -> DataParallel:
    """Train a torch module on all ranks of `group`: each backward pass leaves the ranks' mean gradients.

    Collective. Rank 0's parameters and buffers are copied to all ranks; afterwards each rank updates its own buffers
    (`broadcast_buffers` copies them again). Use the returned object in place of the module.

    Gradients are reduced in buckets during the backward pass (see GradientReducer), and are views of the buckets
    afterwards. After zero_grad() the next backward pass creates new gradients, which are copied into the buckets in the
    background; after zero_grad(set_to_none=False) torch adds to the views in place, which is slower. Do not touch
    gradients before backward() has returned. A parameter that no rank used keeps its gradient, which may be None; if
    some ranks used it, it counts as zeros on the others. Every rank must run the same number of backward passes outside
    `no_sync`, and use at least one parameter in each. If a pass raises, all gradients become None, and the next pass
    starts afresh. For that, the pass must have raised on all ranks, and at the same depth: if one rank had a gradient
    before the error and another had none, they have begun different reductions, and the next pass raises MismatchError.

    Args:
        group: by default the group of all ranks.
        bucket_bytes: as for GradientReducer.
        hook: as for GradientReducer.
        async_op: as for GradientReducer.

    Example:
        >>> import torch
        >>> model = rw.overlap.data_parallel(torch.nn.Linear(3, 1), group)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.full((1, 3), float(group.rank))).sum().backward()
        >>> model.module.weight.grad.tolist(), model.module.bias.grad.tolist()
        ([[0.5, 0.5, 0.5]], [1.0])
        >>> optimizer.step()  # the same on both ranks
    """
    if group is None:
        group = default_group()
    return DataParallel(model, group, bucket_bytes, hook, async_op)
