"""`rankwise.overlap`: communication while the program computes.

Gradients are reduced while the backward pass is still running: `data_parallel` for torch modules, `GradientReducer`
for any arrays. Streams and events order the program's functions and the groups' operations.
"""

from typing import TYPE_CHECKING

from rankwise.group.streams import Event, Stream
from rankwise.overlap.reducer import Bucket, BucketHook, GradientReducer

if TYPE_CHECKING:
    from rankwise.overlap.torch_module import DataParallel, data_parallel

__all__ = [
    "Bucket",
    "BucketHook",
    "DataParallel",
    "Event",
    "GradientReducer",
    "Stream",
    "data_parallel",
]


def __getattr__(name: str) -> object:
    if name not in ("DataParallel", "data_parallel"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rankwise.overlap import torch_module  # which imports torch

    return getattr(torch_module, name)
