"""torch.compile runs this package's functions as they are: they pass addresses to C++, which a graph cannot."""

from __future__ import annotations

from typing import Any


def adopt(trace_rules: Any) -> None:
    """Let torch._dynamo, once it has loaded its rules, neither inline nor compile what is defined in this package."""
    trace_rules.add("rankwise")
