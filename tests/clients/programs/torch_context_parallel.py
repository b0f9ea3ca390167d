"""torch's context parallelism: flex_attention over a sequence that is split over the ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.experimental._attention import _context_parallel_shard, _ContextParallel
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

POSITIONS = 512
SHAPE = (2, 4, POSITIONS, 32)  # rows, heads, positions, width


class Attention(nn.Module):
    def forward(self, query, key, value, block_mask):
        return flex_attention(query, key, value, block_mask=block_mask)


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
whole = [torch.rand(SHAPE) for _ in range(3)]
mask = create_block_mask(lambda row, head, query, key: query >= key, None, None, POSITIONS, POSITIONS, "cpu")
attention = parallelize_module(Attention(), mesh, _ContextParallel(2, _ContextParallel.AttentionType.FLEX))
*parts, part_of_mask = _context_parallel_shard(mesh, [*whole, mask], [2, 2, 2, 2])


def step():
    return attention(*parts, part_of_mask)


found = torch.cat(list(torch.distributed.nn.all_gather(step().contiguous())), 2)

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks, time_of  # noqa: E402

if dist.get_backend() != "fake":
    torch.testing.assert_close(found, Attention()(*whole, mask))
same_on_all_ranks([found])
time_of("pass", step)
dist.destroy_process_group()
