"""torch.compile over functional collectives, and over a layer that parallelize_module has split."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 128

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
rank, ranks = dist.get_rank(), dist.get_world_size()


def exchange(x):
    total = functional.all_reduce(x * 2, "sum", mesh)
    parts = functional.all_gather_tensor(x + 1, 0, mesh)
    part = functional.reduce_scatter_tensor(parts * 3, "sum", 0, mesh)
    return total.sin() + part, parts


torch.manual_seed(0)
layer = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
x = torch.randn(4, WIDTH)
compiled_exchange, compiled_layer = torch.compile(exchange, fullgraph=True), torch.compile(layer)
with torch.no_grad():
    found = [*compiled_exchange(x + rank), compiled_layer(x)]
    expected = [*exchange(x + rank), layer(x)]

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks, time_of  # noqa: E402

if dist.get_backend() != "fake":
    for compiled, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(compiled, eager)
same_on_all_ranks(found[1:])
with torch.no_grad():
    time_of("pass", lambda: compiled_layer(compiled_exchange(x)[0]))
dist.destroy_process_group()
