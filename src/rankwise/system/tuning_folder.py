"""Where tuning files are. Apart from tuning_file.py, so that the launcher need not import what reads them."""

from __future__ import annotations

import os


def folder() -> str:
    """The folder of this user's tuning files; it need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "rankwise")
