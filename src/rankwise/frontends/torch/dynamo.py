"""torch.compile runs this package's functions as they are: they pass addresses to C++, which a graph cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from rankwise._native import Request, Work


def adopt(trace_rules: Any) -> None:
    """Let torch._dynamo, once it has loaded its rules, neither inline nor compile what is defined in this package."""
    trace_rules.add("rankwise")
    for kind in (Work, Request):
        for name in {"wait", "done", "cancel"} & vars(kind).keys():
            setattr(kind, name, _function(getattr(kind, name)))


def _function(native: Callable[..., Any]) -> Callable[..., Any]:
    """The same as a function of Python's: torch._dynamo, which does not know native methods, would drop `self`."""

    @wraps(native)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return native(self, *args, **options)

    return method
