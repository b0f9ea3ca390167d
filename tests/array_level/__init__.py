"""Scenarios, as in rankwise.testing.scenarios, for the code above a communicator: it is the same over every backend."""

from __future__ import annotations

from array_level import arguments, compositions, memory
from rankwise.testing import scenarios

SCENARIOS = scenarios.scenarios_of(arguments, compositions, memory)
EVERY_SCENARIO = {**scenarios.SCENARIOS, **SCENARIOS}
"""With those of the conformance suite."""
