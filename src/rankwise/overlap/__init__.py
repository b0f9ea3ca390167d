"""`rankwise.overlap`: communication while the program computes.

Gradients are reduced while the backward pass is still running: `data_parallel` for torch modules, `GradientReducer`
for any arrays. Streams and events order the program's functions and the groups' operations.
"""

from rankwise.group.streams import Event, Stream
from rankwise.overlap.reducer import Bucket, BucketHook, GradientReducer
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
