"""The mark of the names that `import rankwise` offers."""

from __future__ import annotations

TYPE_CHECKING = False  # the launcher does not import typing
if TYPE_CHECKING:
    from typing import TypeVar

    P = TypeVar("P")


def public(definition: P) -> P:
    """A class or function whose name tracebacks, `repr` and pickles give as the user imports it: `rankwise.NAME`."""
    definition.__module__ = "rankwise"
    return definition
