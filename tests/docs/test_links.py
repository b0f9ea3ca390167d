"""The links of the pages that are not part of the site, whose build checks its own, lead to files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
    *(ROOT / "docs/spec").glob("*.md"),
]


def headings(page: Path) -> set[str]:
    """The anchors that a code host makes of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_they_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue
        to = page.parent / path if path else page
        assert to.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in headings(to), f"{target}: there is no such heading"
