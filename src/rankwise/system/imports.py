"""Changes a module right after the program has imported it: what the program does not use is not imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(changes: Mapping[str, str]) -> None:
    """Pass modules to the function `adopt` of others once they have been imported, before the program sees them.

    changes: by the name of a module, the name of the one with `adopt`, which is imported only then. A module that the
    program has imported is passed at once.
    """
    for name, changer in changes.items():
        if name in sys.modules:
            import_module(changer).adopt(sys.modules[name])
    sys.meta_path.insert(0, _Finder({name: changes[name] for name in changes.keys() - sys.modules.keys()}))


class _Finder(MetaPathFinder):
    def __init__(self, changes: dict[str, str]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        changer = self._changes.pop(fullname, None)
        spec = find_spec(fullname) if changer else None  # by the other finders: this one no longer has the name
        if spec is not None and spec.loader is not None and changer:
            _change_after(spec.loader, changer)
        return spec


def _change_after(loader: Any, changer: str) -> None:
    """Let `adopt` of the module `changer` have the module that this loader executes next."""

    def execute_and_change(module: ModuleType) -> None:
        del loader.exec_module  # the next time it is the loader's own again
        loader.exec_module(module)
        import_module(changer).adopt(module)

    loader.exec_module = execute_and_change
