"""Checks that do not fit a table of cases: functions of a group, for any number of ranks.

`SCENARIOS` holds them by name. Each is called on every rank of a group, and leaves the group working,
with no message pending.
"""

from collections.abc import Callable

from rankwise.group.group import Group
from rankwise.testing.scenarios.arguments import ARGUMENTS
from rankwise.testing.scenarios.groups import GROUPS
from rankwise.testing.scenarios.memory import MEMORY
from rankwise.testing.scenarios.messages import MESSAGES
from rankwise.testing.scenarios.numerics import NUMERICS
from rankwise.testing.scenarios.pointers import POINTERS
from rankwise.testing.scenarios.works import WORKS

SCENARIOS: dict[str, Callable[[Group], None]] = {
    scenario.__name__: scenario for scenario in (*ARGUMENTS, *GROUPS, *MEMORY, *MESSAGES, *NUMERICS, *POINTERS, *WORKS)
}
