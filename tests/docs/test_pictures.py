"""The drawn pictures of the site are those that the code and `docs/pictures.py` make now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_they_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import pictures

    try:
        drawn = pictures.drawn()
    finally:
        for name in ("pictures", "algorithms", "collectives", "architecture", "paths"):
            sys.modules.pop(name, None)
    files = {str(path.relative_to(DOCS / "_static")) for path in (DOCS / "_static").rglob("*.svg")}
    assert drawn.keys() <= files
    for name, text in drawn.items():
        assert (DOCS / "_static" / name).read_text(encoding="utf-8") == text, "run: python docs/pictures.py"
