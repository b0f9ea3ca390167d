"""The registry of what is alive."""

from __future__ import annotations

from rankwise.system.alive import Alive


class Thing:
    pass


def test_things_come_in_their_order_until_nobody_else_has_them() -> None:
    things: Alive[Thing] = Alive()
    kept = [Thing() for _ in range(4)]
    for thing in kept:
        things.add(thing)
    assert list(things) == kept
    del kept[1], thing
    assert list(things) == kept
    kept.pop()
    assert list(things) == kept
    assert len(kept) == 2


def test_one_that_is_added_while_others_are_looked_at_is_found_the_next_time() -> None:
    things: Alive[Thing] = Alive()
    kept = [Thing()]
    things.add(kept[0])
    for _ in things:
        kept.append(Thing())
        things.add(kept[-1])
    assert list(things) == kept
    assert len(kept) == 2


def test_a_cleared_registry_forgets_without_an_error() -> None:
    things: Alive[Thing] = Alive()
    thing = Thing()
    things.add(thing)
    things.clear()
    del thing
    assert list(things) == []
