"""A module is changed when it has been imported, once; its loader is then as it was."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from rankwise.system.imports import after_import


def test_a_module_is_changed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    (tmp_path / "watched_changer.py").write_text("def adopt(module):\n    module.value += 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    after_import({"watched_module": "watched_changer"})
    module = import_module("watched_module")
    try:
        assert module.value == 2
        assert "exec_module" not in vars(module.__loader__)
        after_import({"watched_module": "watched_changer"})  # which the program has imported already
        assert module.value == 3
    finally:
        del sys.modules["watched_module"], sys.modules["watched_changer"]
