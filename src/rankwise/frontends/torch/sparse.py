"""all_reduce of sparse COO tensors: every rank gathers all ranks' entries and adds them up."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp, Work

from rankwise.contract.errors import UnsupportedError
from rankwise.frontends.torch.reductions import moved

if TYPE_CHECKING:
    from rankwise.frontends.torch.core import Core


def all_reduce(group: Core, tensor: Tensor, opts: Any) -> Work | None:
    """Sum `tensor` over the ranks, in place: every rank receives the same coalesced tensor, added in rank order."""
    if opts.reduceOp.op != ReduceOp.SUM:
        raise UnsupportedError(f"all_reduce of sparse tensors with {opts.reduceOp.op}", "rankwise", "", "use SUM")

    def body() -> None:
        with torch.no_grad():
            tensor.copy_(_sum(group, tensor.detach().coalesce()))

    return group.run_body(partial(group.comm.call, body), opts, [tensor], "all_reduce")


def _sum(group: Core, given: Tensor) -> Tensor:
    # The shape goes along: ranks with different ones must not add them up.
    mine = torch.tensor([given._nnz(), given.sparse_dim(), *given.shape], dtype=torch.int64)
    size = group.comm.world_size
    found = torch.empty((size, len(mine)), dtype=torch.int64)
    _gather(group, mine, found, [len(mine)] * size)
    if not torch.equal(found[:, 1:], mine[1:].expand(size, -1)):
        raise ValueError(f"sparse all_reduce: the ranks have different shapes: {found[:, 2:].tolist()}")
    entries = found[:, 0].tolist()
    indices, values = given.indices().t().contiguous(), given.values().contiguous()
    all_indices = indices.new_empty((sum(entries), indices.shape[1]))
    all_values = values.new_empty((sum(entries), *values.shape[1:]))
    _gather(group, indices, all_indices, [n * indices.shape[1] for n in entries])
    _gather(group, values, all_values, [n * prod(values.shape[1:]) for n in entries])
    return torch.sparse_coo_tensor(all_indices.t(), all_values, given.shape, check_invariants=False).coalesce()


def _gather(group: Core, mine: Tensor, out: Tensor, counts: list[int]) -> None:
    group.collectives.all_gather_v(mine.data_ptr(), out.data_ptr(), counts, moved(mine.dtype))
