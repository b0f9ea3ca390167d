"""The point-to-point messages of a process group."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import Work

from rankwise.contract.errors import UnsupportedError
from rankwise.contract.message import ANY
from rankwise.frontends.torch.core import Core, in_a_thread
from rankwise.frontends.torch.reductions import moved
from rankwise.frontends.torch.tensors import source, target


class TorchMessages(Core):
    """Messages match by source and tag, in the order sent. Both calls return at once; `wait` completes them."""

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work:
        (tensor,) = tensors
        memory = source(tensor)
        if memory.pack is not None:
            memory.pack()  # a message begins when it is called, not when the stream comes to it
        dst, number = self._check_root(dstRank), _check_tag(tag)
        work = self.comm.send(memory.ptr, memory.count, moved(memory.dtype), dst, number, (tensor, memory))
        return self._begun(work, tensors, None, memory, in_a_thread(work))

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work:
        return self._receive(tensors, self._check_root(srcRank), tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Receive from any rank; the Work's `_source_rank` returns the sender."""
        if not self.comm.any_source:
            raise UnsupportedError("recv from any rank", type(self.comm).__name__, "", "name the source")
        return self._receive(tensors, ANY, tag)

    def _receive(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        (tensor,) = tensors
        memory = target(tensor)
        number, keep = _check_tag(tag), (tensor, memory)
        work: Any = self.comm.recv(memory.ptr, memory.count, moved(memory.dtype), src, number, keep)

        def finish() -> int:
            if memory.finish is not None:
                memory.finish()
            return work.source if src == ANY else src

        return self._begun(work, tensors, finish, memory, in_a_thread(work))


def _check_tag(tag: int) -> int:
    if tag < 0:
        raise ValueError(f"tag={tag}: expected 0 or more")
    return tag
