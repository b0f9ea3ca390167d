"""The tensors and unfinished operations that a Tcl script holds, each under a handle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.contract.work import Work

Tensor = NDArray[Any]


class Handles:
    """tensors and works by handle: tensor0, tensor1, ... and work0, work1, ... A handle is never reused."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.works: dict[str, Work[Any]] = {}
        self._tensors_made = 0
        self._works_made = 0

    def tensor(self, handle: str) -> Tensor:
        """Raises ValueError if there is no such tensor."""
        if handle not in self.tensors:
            raise ValueError(f'Invalid tensor handle: "{handle}"')
        return self.tensors[handle]

    def work(self, handle: str) -> Work[Any]:
        """Raises ValueError if there is no such operation."""
        if handle not in self.works:
            raise ValueError(f'Invalid work handle: "{handle}"')
        return self.works[handle]

    def add(self, value: Tensor | Work[Any]) -> str:
        """Keep a tensor or an operation; returns its new handle."""
        if isinstance(value, np.ndarray):
            handle = f"tensor{self._tensors_made}"
            self._tensors_made += 1
            self.tensors[handle] = value
        else:
            handle = f"work{self._works_made}"
            self._works_made += 1
            self.works[handle] = value
        return handle

    def clear(self) -> None:
        self.tensors.clear()
        self.works.clear()
