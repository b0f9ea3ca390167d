"""Changes a module right after the program has imported it: what the program does not use is not imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(changes: Mapping[str, str]) -> None:
    """When a module of this name has been imported, before the program sees it, pass it to `adopt` of another one.

    changes: the name of that other module, which is imported then, by the name of the program's.
    """
    sys.meta_path.insert(0, _Finder(changes))


class _Finder(MetaPathFinder):
    def __init__(self, changes: Mapping[str, str]) -> None:
        self._changes = dict(changes)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._changes:
            return None
        changer = self._changes.pop(fullname)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                _change_after(spec.loader, changer)
                return spec
        return None


def _change_after(loader: Any, changer: str) -> None:
    execute = loader.exec_module

    def execute_and_change(module: ModuleType) -> None:
        execute(module)
        import_module(changer).adopt(module)

    loader.exec_module = execute_and_change
