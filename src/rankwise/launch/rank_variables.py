"""The variables that say which rank a process is, and of which job: rankwise's, and those of torch.distributed."""

from __future__ import annotations

Address = tuple[str, int]


def of_rank(
    rank: int, world_size: int, local_rank: int, local_size: int, master: Address, node: int | None, nodes: int
) -> dict[str, str]:
    """master: where torch's rank 0 listens. node: this host's number if the job has several, which are `nodes`."""
    found = {
        "RANKWISE_RANK": rank,
        "RANKWISE_WORLD_SIZE": world_size,
        "RANK": rank,  # this and what follows is read by torch.distributed ("env://")
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": master[1],
    }
    if node is not None:
        found |= {
            "RANKWISE_LOCAL_RANK": local_rank,
            "RANKWISE_LOCAL_WORLD_SIZE": local_size,
            "GROUP_RANK": node,  # torchrun's name
            "NODE_RANK": node,
            "GROUP_WORLD_SIZE": nodes,
        }
    return {name: str(value) for name, value in found.items()}
