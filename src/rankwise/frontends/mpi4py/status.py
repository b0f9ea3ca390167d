"""What a receive or probe tells of its message."""

from __future__ import annotations

from array import array
from typing import Any

from rankwise.frontends.mpi4py.errors import absent

UNDEFINED = -32766
ANY_SOURCE = ANY_TAG = -1
PROC_NULL = -2

_SOURCE, _TAG, _ERROR, _BYTES, _CANCELLED = range(5)
EMPTY = (ANY_SOURCE, ANY_TAG, 0)
"""Source, tag and bytes of a request without a message."""

NOBODY = (PROC_NULL, ANY_TAG, 0)
"""Those of a message from the null rank."""


class Status:
    """Source, tag, error, length and cancellation of one message. The length of an object is that of its encoding."""

    py2f, f2py, handle, fromhandle, toint, fromint = absent(6)

    def __init__(self, status: Status | None = None) -> None:
        if status is not None and not isinstance(status, Status):
            raise TypeError(f"Status: expected a Status or None, got {type(status).__name__}")
        self._fields: array[int] = array("q", (*EMPTY[:2], 0, 0, 0) if status is None else status._fields)

    def _set(self, message: tuple[int, int, int], cancelled: bool = False) -> None:
        fields = self._fields
        fields[_SOURCE], fields[_TAG], fields[_BYTES] = message
        fields[_ERROR], fields[_CANCELLED] = 0, cancelled

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, Status) else NotImplemented

    def __reduce__(self) -> Any:
        return Status, (), {"_fields": self._fields}

    def Get_source(self) -> int:
        return self._fields[_SOURCE]

    def Set_source(self, source: int) -> None:
        self._fields[_SOURCE] = source

    def Get_tag(self) -> int:
        return self._fields[_TAG]

    def Set_tag(self, tag: int) -> None:
        self._fields[_TAG] = tag

    def Get_error(self) -> int:
        return self._fields[_ERROR]

    def Set_error(self, error: int) -> None:
        self._fields[_ERROR] = error

    def Get_count(self, datatype: Any = None) -> int:
        """The number of whole elements, or UNDEFINED. datatype: bytes by default."""
        size, nbytes = 1 if datatype is None else datatype.Get_size(), self._fields[_BYTES]
        if size == 0:
            return 0 if nbytes == 0 else UNDEFINED
        return nbytes // size if nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Any) -> int:
        """The number of basic elements, or UNDEFINED."""
        elements, rest = datatype._live().whole_elements(self._fields[_BYTES])
        return UNDEFINED if rest else elements

    def Set_elements(self, datatype: Any, count: int) -> None:
        self._fields[_BYTES] = datatype._live().bytes_of(count)

    def Is_cancelled(self) -> bool:
        return bool(self._fields[_CANCELLED])

    def Set_cancelled(self, flag: bool) -> None:
        self._fields[_CANCELLED] = flag

    def tomemory(self) -> memoryview:
        return memoryview(self._fields)

    source = property(Get_source, Set_source)
    tag = property(Get_tag, Set_tag)
    error = property(Get_error, Set_error)
    cancelled = property(Is_cancelled, Set_cancelled)

    def _set_count(self, nbytes: int) -> None:
        self._fields[_BYTES] = nbytes

    count = property(Get_count, _set_count)
