"""The functions of the torch::distributed_ commands: checks that need no other rank, then one array operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.arrays.ops import NAMES
from rankwise.contract.types import ReduceOp
from rankwise.contract.work import Work
from rankwise.frontends.tcl import worlds
from rankwise.frontends.tcl.handles import Tensor
from rankwise.frontends.tcl.parameters import invalid
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.worlds import Alone, Ranks

NEGATIVE_SRC = "Required parameter missing: -tensor, or invalid src parameter"


def init(session: Session, rank: int, world_size: int, master_addr: str, master_port: int, backend: str) -> str:
    if not 0 < master_port < 2**16:
        raise invalid("masterPort", master_port, "Must be from 1 to 65535.")
    world, answer = worlds.initialize(rank, world_size, master_addr, master_port, backend)
    session.world.close()
    session.world = world
    return answer


def finalize(session: Session) -> str:
    if not session.world.initialized:
        return session.world.barrier
    session.leave_world()
    return "Distributed training finalized"


def barrier(session: Session) -> str:
    session.world.ranks.barrier()
    return session.world.barrier


def get_rank(session: Session) -> int:
    return session.world.rank


def get_world_size(session: Session) -> int:
    return session.world.world_size


def is_distributed(session: Session) -> bool:
    return session.world.initialized and session.world.world_size > 1


def gather(session: Session, tensor: Tensor, dst: int, group: str) -> Tensor:
    ranks = session.world.group(group)
    if dst == -1:
        return ranks.all_gather(tensor)
    if not isinstance(ranks, Alone) and not 0 <= dst < ranks.world_size:
        raise invalid("dst", dst, f"Must be a rank from 0 to {ranks.world_size - 1}, or -1 for every rank.")
    gathered = ranks.gather(tensor, dst)
    return np.empty((0, *tensor.shape), tensor.dtype) if gathered is None else gathered


def scatter(session: Session, tensor: Tensor, src: int, group: str) -> Tensor:
    if src < 0:
        raise ValueError(NEGATIVE_SRC)
    ranks = session.world.group(group)
    return ranks.scatter(_splittable(tensor), _rank(ranks, "src", src))


def reduce_scatter(session: Session, tensor: Tensor, op: str, group: str) -> Tensor:
    ranks = session.world.group(group)
    return ranks.reduce_scatter(_splittable(tensor), _operation("op", op, tensor))


def all_reduce(session: Session, tensor: Tensor, operation: str, group: str) -> Tensor:
    ranks = session.world.group(group)
    return ranks.all_reduce(np.array(tensor), _operation("operation", operation, tensor))


def reduce(session: Session, tensor: Tensor, dst: int, op: str, group: str) -> Tensor:
    ranks = session.world.group(group)
    dst = dst if isinstance(ranks, Alone) else _rank(ranks, "dst", dst)
    result = np.array(tensor)
    ranks.reduce(result, dst, _operation("op", op, tensor))
    return result


def broadcast(session: Session, tensor: Tensor, root: int, group: str) -> Tensor:
    ranks = session.world.group(group)
    return ranks.broadcast(np.array(tensor), _rank(ranks, "root", root))


def all_gather(session: Session, tensor: Tensor, group: str) -> Tensor:
    return session.world.group(group).all_gather(tensor)


def all_to_all(session: Session, tensor: Tensor, group: str) -> Tensor:
    return session.world.group(group).all_to_all(_splittable(tensor))


def isend(session: Session, tensor: Tensor, dst: int, tag: int) -> Work[None]:
    ranks = session.world.ranks
    return ranks.isend(tensor, _rank(ranks, "dst", dst), tag)


def send(session: Session, tensor: Tensor, dst: int, tag: int) -> None:
    isend(session, tensor, dst, tag).wait()


def irecv(session: Session, shape: tuple[int, ...], src: int, tag: int, dtype: np.dtype[Any]) -> Work[Tensor]:
    ranks = session.world.ranks
    return ranks.irecv(shape, _rank(ranks, "src", src), tag, dtype=dtype)


def recv(session: Session, shape: tuple[int, ...], src: int, tag: int, dtype: np.dtype[Any]) -> Tensor:
    return irecv(session, shape, src, tag, dtype).wait()


def wait(session: Session, handle: str) -> Tensor | None:
    result: Tensor | None = session.handles.work(handle).wait()
    del session.handles.works[handle]
    return result


def test(session: Session, handle: str) -> bool:
    return session.handles.work(handle).done()


def new_group(session: Session, name: str, ranks: tuple[int, ...]) -> str:
    session.world.new_group(name, ranks)
    return name


def _rank(ranks: Ranks, option: str, rank: int) -> int:
    """Check that `rank` is a rank of the group; an Alone accepts every rank from 0 on."""
    if isinstance(ranks, Alone):
        if rank < 0:
            raise invalid(option, rank, "Must be a rank of at least 0.")
    elif not 0 <= rank < ranks.world_size:
        raise invalid(option, rank, f"Must be a rank from 0 to {ranks.world_size - 1}.")
    return rank


def _operation(option: str, name: str, tensor: Tensor) -> ReduceOp:
    """The operation of that name, checked to be meaningful for the tensor's dtype."""
    op = NAMES[name]
    refused = op.refused_for(dtypes.parse(tensor.dtype))
    if refused is not None:
        raise invalid(option, name, f"The tensor is of {tensor.dtype.name}: {refused}.")
    return op


def _splittable(tensor: Tensor) -> Tensor:
    """Every rank checks its tensor, even if it is not read, so that all ranks refuse alike."""
    if tensor.ndim == 0:
        raise ValueError("Invalid -tensor parameter. A tensor of shape {} has no first dimension to split.")
    return tensor
