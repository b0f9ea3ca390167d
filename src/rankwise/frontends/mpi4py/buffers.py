"""The memory of any buffer of the host, as a NumPy array."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.frontends.mpi4py.dlpack import array_of

ndarray = np.ndarray
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def bytes_of(buf: Any, writes: bool) -> Bytes:
    """The memory of a buffer. Raises TypeError or BufferError for what has none, or must not be written to."""
    x = buf
    if not isinstance(x, ndarray):
        x = as_array(buf)
    if writes and not x.flags.writeable:
        raise BufferError("message: the receive buffer is read-only")
    if not x.flags.c_contiguous:
        if not x.flags.f_contiguous:
            raise BufferError("message: expecting contiguous buffer")
        x = x.T
    data: Bytes = x.reshape(-1).view(np.uint8)
    return data


def as_array(buf: Any) -> Any:
    """A NumPy array over the memory of any buffer of the host."""
    if hasattr(buf, "__cuda_array_interface__"):
        raise BufferError("message: a buffer on a GPU; rankwise's mpi4py takes host memory, so copy it there first")
    if hasattr(buf, "__array_interface__"):
        return np.asarray(buf)
    try:
        view = memoryview(buf)
    except TypeError:
        if hasattr(buf, "__dlpack__"):
            return array_of(buf)
        raise TypeError("message: expecting buffer or list/tuple") from None
    if not view.contiguous:
        raise BufferError("message: expecting contiguous buffer")
    if view.nbytes:
        return np.frombuffer(view.cast("B") if view.c_contiguous else view.tobytes("A"), np.uint8)
    empty = np.zeros(0, np.uint8)
    empty.flags.writeable = not view.readonly
    return empty
