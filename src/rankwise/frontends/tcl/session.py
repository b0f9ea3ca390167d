"""A session: the state of one Tcl interpreter, and how a call becomes a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.frontends.tcl import worlds
from rankwise.frontends.tcl.handles import Handles
from rankwise.frontends.tcl.parameters import Command
from rankwise.frontends.tcl.topics import nearest

INSTALL_TORCH = "pip install 'rankwise[tcl]'"

Answer = tuple[str, str, str]
"""The outcome of a call: "ok" or "error", then the result or the message, then Tcl's errorCode."""


class Session:
    """commands: by snake_case name. handles: the objects of the script. world: what distributed_init made."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.commands = commands
        self.handles = Handles()
        self.world = worlds.not_initialized()
        self.random = np.random.default_rng()

    def answer(self, name: str, words: Sequence[str]) -> Answer:
        """Run a command. It raises nothing: a command that fails is a Tcl error, which the script may catch."""
        if (command := self.commands.get(name)) is None:
            return "error", self._unknown(name), f"TCL LOOKUP COMMAND torch::{name}"
        try:
            return "ok", self._text(command.function(self, **command.arguments(self.handles, words))), "NONE"
        except ModuleNotFoundError as error:
            text = str(error) if error.name != "torch" else f"torch::{name} needs torch: {INSTALL_TORCH}"
            return "error", text, f"RANKWISE {type(error).__name__}"
        except Exception as error:  # noqa: BLE001 - the border between two languages
            return "error", str(error) or type(error).__name__, f"RANKWISE {type(error).__name__}"

    def _unknown(self, name: str) -> str:
        """Tcl's message about a command that does not exist, and what was probably meant."""
        near = nearest(name, self.commands)
        advice = f"did you mean torch::{near}?" if near else "torch::help lists the commands"
        return f'invalid command name "torch::{name}": {advice}'

    def close(self) -> None:
        """Forget all handles and groups. The group of all ranks stays open until the process ends."""
        self.handles = Handles()
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
        if isinstance(value, int):  # True is 1
            return str(int(value))
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        return self.handles.add(value)
