"""The common case of the array level in one call, where a backend offers it."""

from __future__ import annotations

from collections.abc import Callable


class Shortcuts:
    """One operation on plain arrays each: contiguous, in host memory, of one dtype, with fitting shapes.

    A method returns whether it did the operation, completely. False, with nothing done, for anything
    that needs a closer look; the caller then goes the general way, which also finds the words for
    what is wrong. These here do nothing; a backend may have better ones.
    """

    barrier: Callable[[], None] | None = None
    """The communicator's barrier by a shorter way, if there is one."""

    def all_reduce_array(self, x: object, op: object) -> bool:
        return False

    def reduce_array(self, x: object, dst: object, op: object) -> bool:
        return False

    def broadcast_array(self, x: object, src: object) -> bool:
        return False

    def all_gather_array(self, x: object, out: object) -> bool:
        return False

    def gather_array(self, x: object, dst: object, out: object) -> bool:
        return False

    def scatter_array(self, x: object, src: object, out: object, rest: Callable[[list[int]], object]) -> bool:
        """Off src, `rest` is called with src's header where that says that `out` does not fit."""
        return False

    def reduce_scatter_array(self, x: object, op: object, out: object) -> bool:
        return False

    def send_array(self, x: object, dst: object, tag: object) -> bool:
        """Blocking, as recv_array is."""
        return False

    def recv_array(self, x: object, src: object, tag: object) -> bool:
        return False

    def all_to_all_array(self, x: object, out: object) -> bool:
        return False
