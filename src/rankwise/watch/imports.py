"""Changes a module right after the program has imported it: what the program does not use is not imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Change = Callable[[ModuleType], None]


def after_import(changes: Mapping[str, Change]) -> None:
    """Call changes[name](module) when the module of this name has been imported, before the program sees it."""
    sys.meta_path.insert(0, _Finder(changes))


class _Finder(MetaPathFinder):
    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = dict(changes)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._changes:
            return None
        change = self._changes.pop(fullname)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, change)
                return spec
        return None


class _Loader(Loader):
    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader, self._change = loader, change

    def __getattr__(self, name: str) -> object:
        """What the module's own loader has besides, such as get_source."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._change(module)
