"""A session: the state of one Tcl interpreter, and how a call becomes a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.contract.work import Work
from rankwise.frontends.tcl import worlds
from rankwise.frontends.tcl.handles import Handles
from rankwise.frontends.tcl.parameters import Command

Answer = tuple[str, str, str]
"""The outcome of a call: "ok" or "error", then the result or the message, then Tcl's errorCode."""


class Session:
    """commands: by snake_case name. handles: the script's tensors and works. world: what distributed_init made."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.commands = commands
        self.handles = Handles()
        self.world = worlds.not_initialized()
        self.random = np.random.default_rng()

    def answer(self, name: str, words: Sequence[str]) -> Answer:
        """Run a command. It raises nothing: a command that fails is a Tcl error, which the script may catch."""
        try:
            command = self.commands[name]
            return "ok", self._text(command.function(self, **command.arguments(self.handles, words))), "NONE"
        except Exception as error:  # noqa: BLE001 - the border between two languages
            return "error", str(error) or type(error).__name__, f"RANKWISE {type(error).__name__}"

    def close(self) -> None:
        """Forget tensors and groups. The group of all ranks stays open until the process ends."""
        self.handles.clear()
        self.leave_world()

    def leave_world(self) -> None:
        """Return to the state before distributed_init."""
        self.world.close()
        self.world = worlds.not_initialized()

    def _text(self, value: Any) -> str:
        """What a command returned, as Tcl sees it."""
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, np.ndarray | Work):
            return self.handles.add(value)
        if isinstance(value, bool):
            return str(int(value))
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        assert isinstance(value, int)
        return str(value)
