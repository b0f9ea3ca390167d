"""The variables that say which rank a process is, and of which job: rankwise's, and those of torch.distributed;
and the variable with the thresholds of the tuning file."""

from __future__ import annotations

import os

from rankwise._native import thresholds
from rankwise.system.tuning_folder import folder

Address = tuple[str, int]


def of_rank(
    rank: int, world_size: int, local_rank: int, local_size: int, master: Address, node: int | None, nodes: int
) -> dict[str, str]:
    """master: where torch's rank 0 listens. node: this host's number if the job has several, which are `nodes`."""
    variables = {
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
        variables |= {
            "RANKWISE_LOCAL_RANK": local_rank,
            "RANKWISE_LOCAL_WORLD_SIZE": local_size,
            "GROUP_RANK": node,  # torchrun's name
            "NODE_RANK": node,
            "GROUP_WORLD_SIZE": nodes,
        }
    return {name: str(value) for name, value in variables.items()}


def of_tuning() -> dict[str, str]:
    """RANKWISE_THRESHOLDS, if a tuning file is in force: ranks that are compiled programs cannot read its JSON.

    It is "invalid: <why>" for a file that cannot be used.
    """
    named = os.environ.get("RANKWISE_TUNING") or None
    if named is None and not os.path.isdir(folder()):  # as on most machines
        return {}
    from rankwise.system import tuning_file  # slow to import

    path = tuning_file.in_force(named)
    if path is None:
        return {}
    given = "tuning file" if named is None else "environment variable RANKWISE_TUNING: tuning file"
    try:
        values = tuning_file.load(path, thresholds(), given).values()
    except ValueError as error:
        return {"RANKWISE_THRESHOLDS": f"invalid: {error}"}
    return {"RANKWISE_THRESHOLDS": ",".join(f"{cores}.{name}={size}" for cores, name, size in values)}
