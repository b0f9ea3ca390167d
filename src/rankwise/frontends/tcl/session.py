"""A session: what one Tcl interpreter knows, and the way a call takes through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.contract.work import Work
from rankwise.frontends.tcl import worlds
from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.kinds import Tensor

Answer = tuple[str, str, str]
"""Of a call: "ok" or "error", the result or the message, and Tcl's errorCode."""


class Session:
    """tensors, works: by handle, tensor0, tensor1, ... and work0, ...; world: what distributed_init made."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.works: dict[str, Work[Any]] = {}
        self.world = worlds.not_initialized()
        self.random = np.random.default_rng()
        self._tensors_made = 0
        self._works_made = 0

    def tensor(self, handle: str) -> Tensor:
        """ValueError where there is none of that handle."""
        if handle not in self.tensors:
            raise ValueError(f'Invalid tensor handle: "{handle}"')
        return self.tensors[handle]

    def work(self, handle: str) -> Work[Any]:
        """ValueError where there is none of that handle."""
        if handle not in self.works:
            raise ValueError(f'Invalid work handle: "{handle}"')
        return self.works[handle]

    def answer(self, name: str, words: Sequence[str]) -> Answer:
        """Run a command. No error leaves it: a command that fails is a Tcl error, and the script decides."""
        try:
            command = COMMANDS[name]
            return "ok", self._text(command.function(self, **command.arguments(self, words))), "NONE"
        except Exception as error:  # noqa: BLE001 - the border between two languages
            return "error", str(error) or type(error).__name__, f"RANKWISE {type(error).__name__}"

    def close(self) -> None:
        """Forget tensors and groups. The group of all ranks stays open; the process closes it at its end."""
        self.tensors.clear()
        self.works.clear()
        self.leave_world()

    def leave_world(self) -> None:
        """Be as before distributed_init."""
        self.world.close()
        self.world = worlds.not_initialized()

    def _text(self, value: Any) -> str:
        """What a command gave, as Tcl sees it."""
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, np.ndarray):
            return self._keep_tensor(value)
        if isinstance(value, Work):
            return self._keep_work(value)
        if isinstance(value, bool):
            return str(int(value))
        if isinstance(value, tuple):
            return " ".join(map(str, value))
        assert isinstance(value, int)
        return str(value)

    def _keep_tensor(self, tensor: Tensor) -> str:
        handle = f"tensor{self._tensors_made}"
        self._tensors_made += 1
        self.tensors[handle] = tensor
        return handle

    def _keep_work(self, work: Work[Any]) -> str:
        handle = f"work{self._works_made}"
        self._works_made += 1
        self.works[handle] = work
        return handle
