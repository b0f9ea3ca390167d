"""README.md as the package index shows it. scikit-build-core calls this when it builds (pyproject.toml).

In the repository the links are relative. On the package index they lead to the repository's files of this version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The field `readme` of the project."""
    text = Path("README.md").read_text(encoding="utf-8")
    return {"readme": {"content-type": "text/markdown", "text": absolute(text, project["urls"], project["version"])}}


def absolute(text: str, urls: Mapping[str, str], version: str) -> str:
    """A Markdown text whose links and pictures no longer depend on where it is shown."""

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}[{label}]({urls['Repository']}/{kind}/v{version}/{target})"

    return re.sub(r"(!?)\[([^][]*)\]\((?!https?://|#)([^()\s]+)\)", link, text)
