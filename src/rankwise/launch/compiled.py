"""A variable for ranks that are compiled programs: the tuning file's thresholds, since they cannot read its JSON."""

from __future__ import annotations

import os

from rankwise._native import thresholds
from rankwise.system.tuning_folder import folder


def variables() -> dict[str, str]:
    """RANKWISE_THRESHOLDS, if a tuning file is in force for the ranks; "invalid: <why>" for one that cannot be used."""
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
