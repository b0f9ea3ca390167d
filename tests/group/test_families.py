"""Group is made of families of operations that do not depend on each other."""

from __future__ import annotations

import rankwise as rw
from rankwise.contract.closing import Closeable
from rankwise.group.base import GroupBase


def test_group_names_all_its_families() -> None:
    families = [cls for cls in rw.Group.__mro__ if cls not in (rw.Group, GroupBase, object)]
    assert families == list(rw.Group.__bases__)
    assert all(family.__bases__ == (GroupBase,) for family in families if family is not Closeable)


def test_no_operation_has_two_definitions() -> None:
    names = [name for cls in (rw.Group, *rw.Group.__bases__) for name in vars(cls) if not name.startswith("__")]
    assert sorted(names) == sorted(set(names))
