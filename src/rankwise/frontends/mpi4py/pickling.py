"""MPI.pickle: how lower-case calls encode objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from rankwise.group.object_block import Codec, pickled, pieces


class Pickle:
    """Encodes objects. `MPI.pickle.__init__(dill.dumps, dill.loads)` makes all lower-case calls use another pickle.

    As long as it has Python's own, objects travel in rankwise's encoding, which is a pickle whose large arrays are not
    copied.
    """

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[..., Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self._dumps, self._loads = dumps or pickle.dumps, loads or pickle.loads
        own = dumps is None or dumps is pickle.dumps
        self.PROTOCOL = protocol if protocol is not None or not own else pickle.HIGHEST_PROTOCOL
        self.THRESHOLD = 1024**2 // 4 if threshold is None else threshold
        self.replaced = not own or loads not in (None, pickle.loads)

    def dumps(self, obj: Any) -> bytes:
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)

    def loads(self, data: Any) -> Any:
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[Any]]:
        """The encoding, and the memory of large arrays apart from it."""
        apart: list[Any] = []

        def in_stream(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < self.THRESHOLD:
                return True
            apart.append(buffer.raw())
            return False

        return self._dumps(obj, max(5, self.PROTOCOL or 0), buffer_callback=in_stream), apart

    def loads_oob(self, data: Any, buffers: Any) -> Any:
        return self._loads(data, buffers=buffers)


PICKLE = Pickle()
"""MPI.pickle."""


def wrap(obj: Any) -> Any:
    """What travels in place of the object."""
    return PICKLE.dumps(obj) if PICKLE.replaced else obj


def unwrap(obj: Any) -> Any:
    """The object of what has arrived."""
    return PICKLE.loads(obj) if PICKLE.replaced else obj


CODEC = Codec(lambda obj: pieces(*pickled(obj)), trusted=True)
"""Any object is pickled, and loaded, as in MPI."""
