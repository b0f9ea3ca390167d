"""The logger of rankwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def logger() -> Logger:
    import logging  # slow to import, and seldom needed

    return logging.getLogger("rankwise")
