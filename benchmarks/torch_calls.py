"""What a call of torch.distributed costs on rankwise beyond what torch itself needs for it.

    rankwise run -n 2 benchmarks/torch_calls.py [CALL ...] [--size 2048] [--time 0.1]

Each call is made on rankwise and on a backend whose operations do nothing, which shows what torch needs, and on gloo:
blocking calls, asynchronous calls with their wait, functional collectives, messages, and training steps of a model of
5,000 parameters with DistributedDataParallel. CALL: only those whose name contains one of these words. Measurements
are interleaved as in torch_distributed.py. Times are in us per call, on the slowest rank; the table,
in Markdown, shows the median over the batches, and the best batch.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch_distributed import FLOOR, SHORT_BATCH, Groups, Nothing, all_gather, measure, number, reduce_scatter

Call = Callable[[], object]
CONTENDERS = ("rankwise", FLOOR, "gloo")


class Complete(dist.Work):
    """An operation that is complete."""

    def __init__(self, tensors: object) -> None:
        super().__init__()
        self.tensors = tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> object:
        future: torch.futures.Future[object] = torch.futures.Future()
        future.set_result(self.tensors)
        return future


class NothingAtOnce(Nothing):
    """The same with a Work for an asynchronous call."""

    def _started(self, tensors: object = None, *rest: object, opts: object = None) -> dist.Work | None:
        options = opts or rest[-1]
        return Complete(tensors) if getattr(options, "asyncOp", True) else None

    barrier = allreduce = broadcast = send = recv = _started  # type: ignore[assignment]
    all_gather_single = reduce_scatter_single = all_to_all_single = _started  # type: ignore[assignment]
    all_gather_single_coalesced = reduce_scatter_single_coalesced = _started
    allgather_into_tensor_coalesced = reduce_scatter_tensor_coalesced = _started  # before torch 2.13
    _allgather_base = _reduce_scatter_base = alltoall_base = _started  # type: ignore[assignment]


def calls(size: int, group: dist.ProcessGroup) -> dict[str, Call]:
    """Each call on `size` bytes: of the reduced tensor, of the gathered result, or of the scattered input."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    name = group.group_name
    x, received = torch.zeros(size // 4), torch.zeros(size // 4)
    part = torch.zeros(size // 4 // ranks)
    ops = torch.ops._c10d_functional
    split = [len(part)] * ranks
    peer, first = (rank + 1) % ranks, rank % 2 == 0 and rank + 1 < ranks

    def ping() -> None:
        for sends in (first, not first):
            if sends:
                dist.send(x, group=group, group_dst=peer)
            else:
                dist.recv(received, group=group, group_src=peer)

    def exchange() -> None:
        works = dist.irecv(received, group=group, group_src=peer), dist.isend(x, group=group, group_dst=peer)
        for work in works:
            assert work is not None
            work.wait()

    def pending(start: Callable[..., dist.Work | None], *args: object) -> Call:
        return lambda: start(*args, group=group, async_op=True).wait()  # type: ignore[union-attr]

    found: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_reduce, AVG": lambda: dist.all_reduce(x, dist.ReduceOp.AVG, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "all_gather_into_tensor": lambda: all_gather(x, part, group=group),
        "reduce_scatter_tensor": lambda: reduce_scatter(part, x, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(received, x, group=group),
        "barrier": lambda: dist.barrier(group=group),
        "all_reduce, async": pending(dist.all_reduce, x),
        "broadcast, async": pending(dist.broadcast, x, 0),
        "all_gather_into_tensor, async": pending(all_gather, x, part),
        "reduce_scatter_tensor, async": pending(reduce_scatter, part, x),
        "all_to_all_single, async": pending(dist.all_to_all_single, received, x),
        "barrier, async": pending(dist.barrier),
        "functional all_reduce_": lambda: ops.wait_tensor(ops.all_reduce_(x, "sum", name)),
        "functional all_reduce": lambda: ops.wait_tensor(ops.all_reduce(x, "sum", name)),
        "functional all_gather_into_tensor": lambda: ops.wait_tensor(ops.all_gather_into_tensor(part, ranks, name)),
        "functional reduce_scatter_tensor": lambda: ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", ranks, name)),
        "functional all_to_all_single": lambda: ops.wait_tensor(ops.all_to_all_single(x, split, split, name)),
        "_functional_collectives.all_reduce": lambda: functional.all_reduce(x, "sum", group).wait(),
    }
    if ranks == 2:
        found |= {"send and recv": ping, "isend and irecv": exchange}
    return found | {"DDP step": ddp_step(group)}


def ddp_step(group: dist.ProcessGroup) -> Call:
    """Forward, backward and update of a model of 5,000 parameters."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 13)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, init_sync=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    rows = torch.randn(4, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", nargs="*")
    parser.add_argument("--time", type=float, default=0.1, help="seconds for each contender and call")
    parser.add_argument("--size", type=int, default=2048, help="bytes")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.Backend.register_backend(FLOOR, NothingAtOnce, devices=["cpu"])
    dist.init_process_group("rankwise")
    groups: Groups = {name: dist.new_group(backend=name) for name in CONTENDERS}
    by_group = {name: calls(args.size, group) for name, group in groups.items()}
    names = [name for name in by_group["gloo"] if not args.call or any(word in name for word in args.call)]
    if dist.get_rank() == 0:
        heads = ["rankwise", FLOOR, f"rankwise - {FLOOR}", f"rankwise / {FLOOR}", "gloo"]
        print(f"Calls on {args.size} bytes, {dist.get_world_size()} ranks\n")
        print(f"| | {' | '.join(f'{head} | best' for head in heads)} |\n|---|{'---|' * 2 * len(heads)}")
    for name in names:
        times = measure({contender: by_group[contender][name] for contender in groups}, args.time, SHORT_BATCH)
        cells = []
        for figure in (statistics.median, min):
            ours, floor, gloo = (1e6 * figure(times[contender]) for contender in CONTENDERS)
            cells.append([number(value) for value in (ours, floor, ours - floor, ours / floor, gloo)])
        if dist.get_rank() == 0:
            print(f"| {name} | {' | '.join(cell for pair in zip(*cells, strict=True) for cell in pair)} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
