"""docs/how-to/frameworks.md has the frameworks that `make test-all PART=clients` tries, with their versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.table import CLIENTS, Client

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "frameworks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_versions_are_those_of_the_page(client: Client) -> None:
    assert f" | {client.version} | " in PAGE
