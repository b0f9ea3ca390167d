"""The common case of the array level in one call, where a backend offers it."""

from __future__ import annotations


class Shortcuts:
    """One operation on plain arrays each: contiguous, in host memory, of one dtype, with fitting shapes.

    A method returns whether it did the operation, completely. False, with nothing done, for anything
    that needs a closer look; the caller then goes the general way, which also finds the words for
    what is wrong. These here do nothing; a backend may have better ones.
    """

    def all_reduce_array(self, x: object, op: object) -> bool:
        return False

    def broadcast_array(self, x: object, src: int) -> bool:
        return False

    def all_gather_array(self, x: object, out: object) -> bool:
        return False

    def gather_array(self, x: object, dst: int, out: object) -> bool:
        return False

    def reduce_scatter_array(self, x: object, op: object, out: object) -> bool:
        return False

    def all_to_all_array(self, x: object, out: object) -> bool:
        return False
