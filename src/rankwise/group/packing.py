"""Encodes an object as the parts of a message: by the codec, or as a pickle if that is allowed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.group import codec
from rankwise.group.codec import Bytes

PLAIN, PICKLE = 0, 1


@dataclass(frozen=True)
class Packed:
    """An encoded object: the kind of its encoding, and its parts."""

    kind: int
    parts: list[Bytes]

    @property
    def sizes(self) -> list[int]:
        return [part.size for part in self.parts]


def pack(obj: Any, allow_pickle: bool) -> Packed:
    """Encode an object. Raises TypeError if it is not plain data and may not, or cannot, be pickled."""
    try:
        return Packed(PLAIN, codec.encode(obj))
    except (TypeError, ValueError):
        if not allow_pickle:
            raise
    buffers: list[Bytes] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        """Whether the pickle itself contains the buffer; otherwise it becomes a part of its own."""
        memory = buffer.raw()
        if memory.nbytes < codec.INLINE:
            return True
        buffers.append(np.frombuffer(memory, np.uint8))
        return False

    stream = pickle.dumps(obj, 5, buffer_callback=in_band)
    return Packed(PICKLE, [np.frombuffer(stream, np.uint8), *buffers])


def unpack(packed: Packed, allow_pickle: bool, rank: int) -> Any:
    """Decode an object from `rank`. Raises TypeError for a pickle that is not allowed, ValueError if it is invalid."""
    if packed.kind == PLAIN:
        return codec.decode(packed.parts)
    if not allow_pickle:
        raise TypeError(f"rank {rank} sent a pickle; pass allow_pickle=True here too if that rank may be trusted")
    return pickle.loads(packed.parts[0].data, buffers=packed.parts[1:])
