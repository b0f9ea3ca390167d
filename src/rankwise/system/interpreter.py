"""Python's interpreters: a process may have several, of which only the first can use the engine.

The engine's threads call Python in that one.
"""

from __future__ import annotations

import sys
from importlib import import_module


def refuse_subinterpreter() -> None:
    """Raise ImportError unless this is the main interpreter."""
    interpreters = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError("rankwise does not work in a subinterpreter: use the main one, or a process for each rank")
