"""`rankwise.elastic.State`: the arrays and objects of a rank that outlive it."""

from __future__ import annotations

import json
import os
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from rankwise.arrays.base import Buffer, bytes_of
from rankwise.arrays.buffers import target
from rankwise.contract.errors import ClosedError, RankwiseError
from rankwise.contract.types import DTYPE_NAMES
from rankwise.elastic.memory import CommitMemory
from rankwise.group.group import Group
from rankwise.system.settings import STATE_MEMFD, Settings, is_memory


@dataclass(frozen=True)
class Resumption:
    """How this rank went on after a loss, and what that cost.

    Attributes:
        lost: {number of a rank in the job: how it was lost}.
        seconds: from the error on this rank until its function was called again.
        reached: its `State.step` at the error.
        resumed: the step from which it went on.

    Example:
        >>> one = rw.elastic.Resumption({1: "was killed by SIGKILL"}, seconds=0.3, reached=7, resumed=6)
        >>> f"{one.reached - one.resumed} step again"
        '1 step again'
    """

    lost: dict[int, str]
    seconds: float
    reached: int
    resumed: int


class State:
    """What a rank needs to go on after a loss: arrays and objects, which it commits step by step.

    `commit` copies everything to memory of the job, where the last two commits are kept. Under `rankwise run
    --restarts` this memory outlives the rank: a State that its replacement makes takes up the commits of the lost rank.
    Otherwise it ends with the process, and serves to go back to a commit. It takes twice the size of the arrays, from
    the time at which the State is made, and twice that of the pickled objects; it is ordinary memory of the host, not
    /dev/shm. A rank has one State at a time.

    Unlike in Horovod's elastic mode, each rank has its own state, which may differ from the others', such as its shard
    of an optimizer's; nothing is sent to a replacement, which finds what its predecessor committed.

    Args:
        arrays: {name: array or tensor}, contiguous or strided; each can be written in place and keeps its shape. Change
            them in place.
        objects: {name: object}, which pickle can write. If an object has `state_dict` and `load_state_dict`, as torch's
            modules, optimizers and schedulers have, these save and restore it; else restoring puts a new object into
            `state.objects`. Change the objects in `state.objects`.

    Raises:
        TypeError, ValueError: an array cannot be written in place, or the memory holds the commits of other arrays.
        MemoryError: says how much is needed and how much available.

    Example:
        >>> weights = np.zeros(3)
        >>> state = rw.elastic.State(arrays={"weights": weights}, objects={"losses": []})
        >>> weights += 1
        >>> state.commit()
        >>> weights += 1
        >>> state.restore()
        >>> weights.tolist(), state.step
        ([1.0, 1.0, 1.0], 1)
        >>> state.close()
    """

    def __init__(self, arrays: Mapping[str, Any] | None = None, objects: Mapping[str, Any] | None = None) -> None:
        self.arrays = MappingProxyType(dict(arrays or {}))
        self.objects = dict(objects or {})
        self.step = 0
        """The number of the last commit: how many steps the program has done."""
        self.group: Group | None = None
        """The group whose ranks commit together; `run` sets it."""
        self.resumptions: list[Resumption] = []
        """The losses after which this process went on, in order."""
        self._pid = os.getpid()
        self._layout: dict[str, list[Any]] = {}  # of each array, the dtype and the shape
        buffers = self._buffers()
        fd = _inherited_memory()
        try:
            memory = CommitMemory(fd, json.dumps(self._layout).encode(), [buffer.nbytes for buffer in buffers])
        except ValueError as error:
            expected = "expected the names, shapes and dtypes of this rank's previous State"
            raise ValueError(f"arrays: {expected}: {error}") from None
        self._memory: CommitMemory | None = memory
        if fd is not None:
            global _owner
            _owner = weakref.ref(self)

    @property
    def commits(self) -> tuple[int, ...]:
        """The numbers of the commits that are kept, at most two, the newest first."""
        return tuple(self._open().commits())

    def commit(self) -> None:
        """Keep the arrays and objects as they are now, as commit number `step` + 1. The program has done a step.

        In a function under `run` this is collective: every rank calls it after the same steps. It begins with a
        barrier, so that no rank is more than one commit ahead of another, and raises what the barrier raises. If the
        rank is killed during the commit, the commit before it counts. If there is no room for larger objects, or pickle
        raises, the last commit still counts.

        Raises:
            MemoryError: there is no room for larger objects.
        """
        if self.group is not None:
            self.group.barrier()
        self.save(self.step + 1)

    def restore(self) -> None:
        """Put the last commit back into the arrays and objects, on this rank alone.

        If pickle raises, nothing changes. If an object's `load_state_dict` raises, only that object and the objects
        with a `load_state_dict` before it may have changed, because this is called before anything else is restored.

        Raises:
            RankwiseError: nothing has been committed; nothing changes.
        """
        commits = self.commits
        if not commits:
            raise RankwiseError("nothing has been committed, so there is nothing to restore")
        self.load(commits[0])

    def close(self) -> None:
        """Give the memory back, and with it the commits. May be repeated; a program that ends need not call it."""
        global _owner
        memory, self._memory = self._memory, None
        if memory is not None and self._pid == os.getpid():
            memory.discard()
            if _owner is not None and _owner() is self:
                _owner = None

    def save(self, number: int) -> None:
        """Commit as this number, on this rank alone. For `run`; programs call `commit`."""
        memory, buffers = self._open(), self._buffers()
        objects = pickle.dumps(
            {name: value.state_dict() if _has_state(value) else value for name, value in self.objects.items()},
            pickle.HIGHEST_PROTOCOL,
        )
        slot = memory.begin()
        for buffer, copy in zip(buffers, memory.arrays[slot], strict=True):
            buffer.pack()
            np.copyto(copy, bytes_of(buffer))
        memory.end(slot, number, objects)
        self.step = number

    def load(self, number: int) -> None:
        """Go back to commit `number`, one of `commits`, on this rank alone, and forget a newer one. For `run`."""
        memory = self._open()
        slot = memory.commits()[number]
        # What may raise comes first, so that nothing is restored by halves.
        objects, buffers = pickle.loads(memory.objects(slot)), self._buffers()
        for name in list(objects):
            state: Any = self.objects.get(name)
            if _has_state(state):
                state.load_state_dict(objects[name])
                objects[name] = state
        for buffer, copy in zip(buffers, memory.arrays[slot], strict=True):
            np.copyto(bytes_of(buffer), copy)
            buffer.finish()
        self.objects.clear()
        self.objects.update(objects)
        memory.drop_after(number)
        self.step = number

    def _open(self) -> CommitMemory:
        if self._pid != os.getpid():
            raise ClosedError("this State belongs to the parent process")
        if self._memory is None:
            raise ClosedError("this State has been closed")
        return self._memory

    def _buffers(self) -> list[Buffer]:
        """The arrays as host memory, which `pack` fills and `finish` writes back where it is not the array itself.

        Raises TypeError or ValueError if one cannot be written, or has another dtype or shape than at the beginning.
        """
        buffers = []
        for name, array in self.arrays.items():
            buffer = target(array, f"arrays[{name!r}]")
            if buffer.given is None:
                raise TypeError(f"arrays[{name!r}]: expected an array that can be written in place, got {array!r}")
            description = [DTYPE_NAMES[buffer.dtype], *buffer.shape]
            if (before := self._layout.setdefault(name, description)) != description:
                raise ValueError(
                    f"arrays[{name!r}]: expected {_text(before)}, as at the beginning, got {_text(description)}"
                )
            buffers.append(buffer.kind.staged(buffer))
        return buffers


_owner: weakref.ref[State] | None = None  # the State that uses the inherited memory


def _inherited_memory() -> int | None:
    """The descriptor of the memory that outlives this rank; None without a launcher that starts lost ranks again.

    Raises ValueError if another State uses it.
    """
    fd = Settings.read().state_fd
    if not is_memory(fd, STATE_MEMFD):
        return None
    if _owner is not None and _owner() is not None:
        raise ValueError("this rank has another State: expected one at a time; close it first, or add to its arrays")
    return fd


def _text(layout: list[Any]) -> str:
    return f"{layout[0]} of shape {tuple(layout[1:])}"


def _has_state(value: object) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
