"""Objects as one block of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from rankwise.group.object_block import ALIGNMENT, PLAIN, aligned, assemble, length_of

OBJECTS = [None, {"a": [1, 2.5]}, [1, np.arange(1000)], {"x": np.ones((3, 700)), "y": np.zeros(5000, np.uint8)}]


@pytest.mark.parametrize("obj", OBJECTS, ids=["none", "basic", "array", "arrays"])
def test_an_object_is_read_from_its_block(obj: object) -> None:
    parts = PLAIN.encode(obj)
    block = b"".join(parts)
    for memory in (block, assemble(parts)[: length_of(parts)]):
        np.testing.assert_equal(PLAIN.read(memory, 0), obj)


def test_blocks_are_assembled_one_after_the_other() -> None:
    blocks = [PLAIN.encode(obj) for obj in OBJECTS]
    memory, at = assemble(*blocks), 0
    for obj, block in zip(OBJECTS, blocks, strict=True):
        np.testing.assert_equal(PLAIN.read(memory[at : at + length_of(block)], 0), obj)
        at += aligned(length_of(block))
    assert at == memory.size


def test_arrays_use_the_memory_of_the_block() -> None:
    block = assemble(PLAIN.encode(OBJECTS[3]))
    for array in PLAIN.read(block, 0).values():
        assert np.shares_memory(array, block)
        assert (array.ctypes.data - block.ctypes.data) % ALIGNMENT == 0


def test_blocks_that_are_invalid() -> None:
    block = b"".join(PLAIN.encode([1, np.arange(1000)]))
    for length in (0, 1, 7, 8, 16, 24, 64, 70, len(block) - 200):
        with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
            PLAIN.read(np.frombuffer(block[:length], np.uint8), 0)
    for count in (0, 1 << 50, 3):
        with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
            PLAIN.read(np.frombuffer((count << 8).to_bytes(8, "little") + block[8:], np.uint8), 0)
