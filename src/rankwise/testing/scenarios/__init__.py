"""Checks that do not fit a table of cases: functions of a group, for any number of ranks.

Each is a public function of one of the modules here. It is called on every rank of a group, and leaves the group
working, with no message pending. `SCENARIOS` holds them by name.
"""

from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType

from rankwise.group.group import Group
from rankwise.testing.scenarios import groups, messages, numerics, pointers, works

Scenario = Callable[[Group], None]


def scenarios_of(*modules: ModuleType) -> dict[str, Scenario]:
    """The scenarios of these modules by name; afterwards each checks that the group still works."""
    return {
        name: partial(_leaving_it_working, scenario)
        for module in modules
        for name, scenario in vars(module).items()
        if isinstance(scenario, FunctionType) and scenario.__module__ == module.__name__ and not name.startswith("_")
    }


def _leaving_it_working(scenario: Scenario, group: Group) -> None:
    scenario(group)
    assert group.all_reduce(1) == group.world_size, "the group no longer works"


SCENARIOS = scenarios_of(groups, messages, numerics, pointers, works)
