"""What the programs check at their end."""

import hashlib
from collections.abc import Iterable

import torch
import torch.distributed as dist


def same_on_all_ranks(tensors: Iterable[torch.Tensor]) -> None:
    """All ranks must have the same tensors, bit for bit; rank 0 prints their digest as the program's result."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest()[:16])
    assert len(digests) == 2, f"{len(digests)} ranks in place of 2"
    assert len(set(digests)) == 1, f"the ranks have different tensors: {digests}"
    if dist.get_rank() == 0:
        print("result:", digests[0], flush=True)
