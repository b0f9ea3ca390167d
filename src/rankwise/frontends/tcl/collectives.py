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

MISSING_OR_INVALID = "Required parameters missing or invalid."
NEGATIVE_SRC = "Required parameter missing: -tensor, or invalid src parameter"
SENT = "send_completed"


def init(session: Session, rank: int, world_size: int, master_addr: str, master_port: int, backend: str) -> str:
    for option, given, fits, must in (
        ("worldSize", world_size, world_size > 0, "Must be at least 1."),
        ("rank", rank, 0 <= rank < world_size, f"Must be from 0 to {world_size - 1}."),
        ("masterPort", master_port, 0 < master_port < 2**16, "Must be from 1 to 65535."),
    ):
        if not fits:
            raise ValueError(f"{MISSING_OR_INVALID} {invalid(option, given, must)}")
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
    result = np.array(tensor)
    ranks.reduce(result, _rank(ranks, "dst", dst), _operation("op", op, tensor))
    return result


def broadcast(session: Session, tensor: Tensor, root: int, group: str) -> Tensor:
    ranks = session.world.group(group)
    if isinstance(ranks, Alone) and root < 0:
        raise invalid("root", root, "Must be a rank of at least 0.")
    return ranks.broadcast(np.array(tensor), _rank(ranks, "root", root))


def all_gather(session: Session, tensor: Tensor, group: str) -> Tensor:
    return session.world.group(group).all_gather(tensor)


def all_to_all(session: Session, tensor: Tensor, group: str) -> Tensor:
    return session.world.group(group).all_to_all(_splittable(tensor))


def isend(session: Session, tensor: Tensor, dst: int, tag: int) -> str:
    ranks = session.world.ranks
    return _begin(
        session, f"isend_handle_dst{dst}_tag{tag}", ranks.isend(_constant(tensor), _rank(ranks, "dst", dst), tag)
    )


def irecv(session: Session, shape: tuple[int, ...], src: int, tag: int, dtype: np.dtype[Any]) -> str:
    ranks = session.world.ranks
    return _begin(
        session, f"irecv_handle_src{src}_tag{tag}", ranks.irecv(shape, _rank(ranks, "src", src), tag, dtype=dtype)
    )


def send(session: Session, tensor: Tensor, dst: int, tag: int) -> str:
    ranks = session.world.ranks
    ranks.isend(tensor, _rank(ranks, "dst", dst), tag).wait()
    return SENT


def recv(session: Session, shape: tuple[int, ...], src: int, tag: int, dtype: np.dtype[Any]) -> Tensor:
    ranks = session.world.ranks
    return ranks.irecv(shape, _rank(ranks, "src", src), tag, dtype=dtype).wait()


def wait(session: Session, handle: str) -> Tensor | str:
    work = session.handles.work(handle)
    if work is None:
        return _pretended(session, handle)
    result: Tensor | None = work.wait()
    session.handles.drop_work(handle)
    return SENT if result is None else result


def test(session: Session, handle: str) -> str:
    work = session.handles.work(handle)
    if work is None:
        _pretended(session, handle)
    return "true" if work is None or work.done() else "false"


def _begin(session: Session, name: str, work: Work[Any]) -> str:
    """Keep the operation; returns its handle, which one process alone, completing in order, may use again."""
    return session.handles.add_work(name, work, shared=isinstance(session.world.ranks, Alone))


def _pretended(session: Session, handle: str) -> Tensor | str:
    """The result of waiting for a handle that no command returned; only an Alone accepts one."""
    if not isinstance(session.world.ranks, Alone):
        raise invalid("handle", handle, "Must be a handle from distributed_isend or distributed_irecv.")
    if "irecv" in handle:
        return np.zeros(1, np.float32)
    return SENT if "isend" in handle else "operation_completed"


def _constant(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if torch owns the memory, because an optimizer may write it before it is sent."""
    return tensor if tensor.flags.owndata else np.array(tensor)


def new_group(session: Session, name: str, ranks: tuple[int, ...]) -> str:
    session.world.new_group(name, ranks)
    return name


def _rank(ranks: Ranks, option: str, rank: int) -> int:
    """Check that `rank` is a rank of the group; an Alone accepts every number."""
    if not isinstance(ranks, Alone) and not 0 <= rank < ranks.world_size:
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
