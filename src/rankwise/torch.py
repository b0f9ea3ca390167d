"""The torch.distributed backend "rankwise", for tensors in host memory.

    import torch.distributed as dist
    dist.init_process_group("rankwise")

torch finds an installed rankwise through its entry point, without this import; `import rankwise.torch`
registers it explicitly. Neither loads the engine: the first process group does. docs/how-to/torch.md says when
to use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise.system.imports import after_import
from rankwise.system.settings import torch_as

if TYPE_CHECKING:
    from rankwise.frontends.torch.group import RankwiseGroup
    from rankwise.frontends.torch.operations import Operations

NAME = "rankwise"


def register() -> None:
    """Register the backend with torch.distributed, also in place of the backend that RANKWISE_TORCH_AS names.

    torch calls this when it is imported. Further calls do nothing.
    """
    from torch import distributed

    if not distributed.is_available() or hasattr(distributed.Backend, NAME.upper()):
        return
    distributed.Backend.register_backend(NAME, _open, extended_api=True, devices=["cpu"])
    if (name := torch_as()) is not None:
        from rankwise.frontends.torch.substitution import substitute

        substitute(name)


def _open(how: Any, options: object = None) -> RankwiseGroup | Operations:
    from rankwise.frontends.torch.group import open_group

    return open_group(how)


after_import({"torch._dynamo.trace_rules": "rankwise.frontends.torch.dynamo"})
register()
