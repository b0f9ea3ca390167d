"""MPI's error classes and exception, and the error of what this front-end does not have."""

from __future__ import annotations

import builtins
from collections.abc import Sized
from typing import Any

_CLASSES = (
    "SUCCESS", "BUFFER", "COUNT", "TYPE", "TAG", "COMM", "RANK", "REQUEST", "ROOT", "GROUP", "OP", "TOPOLOGY",
    "DIMS", "ARG", "UNKNOWN", "TRUNCATE", "OTHER", "INTERN", "PENDING", "IN_STATUS", "ACCESS", "AMODE", "ASSERT",
    "BAD_FILE", "BASE", "CONVERSION", "DISP", "DUP_DATAREP", "FILE_EXISTS", "FILE_IN_USE", "FILE", "INFO_KEY",
    "INFO_NOKEY", "INFO_VALUE", "INFO", "IO", "KEYVAL", "LOCKTYPE", "NAME", "NO_MEM", "NOT_SAME", "NO_SPACE",
    "NO_SUCH_FILE", "PORT", "PROC_ABORTED", "QUOTA", "READ_ONLY", "RMA_ATTACH", "RMA_CONFLICT", "RMA_FLAVOR",
    "RMA_RANGE", "RMA_SHARED", "RMA_SYNC", "SERVICE", "SESSION", "SIZE", "SPAWN", "UNSUPPORTED_DATAREP",
    "UNSUPPORTED_OPERATION", "VALUE_TOO_LARGE", "WIN", "ERRHANDLER",
)  # fmt: skip

CODES = {name if name == "SUCCESS" else f"ERR_{name}": code for code, name in enumerate(_CLASSES)}
"""The error classes by name. Their values are the front-end's own, as each MPI has its own."""

CODES["ERR_LASTCODE"] = 0x3FFFFFFF
_NAMES = {code: name for name, code in CODES.items()}


class Exception(builtins.RuntimeError):  # mpi4py's name
    """An error of a call: `Get_error_class()` is one of ERR_RANK, ERR_TRUNCATE and so on.

    Failures of the job (a lost rank, calls that do not match, a timeout) are rankwise's errors instead.

    Attributes:
        error_code, error_class: the number of the class.
        error_string: what was wrong.
    """

    def __init__(self, ierr: int = 0, text: str = "") -> None:
        self.error_code = self.error_class = int(ierr)
        name = _NAMES.get(self.error_code, f"error {self.error_code}")
        self.error_string = f"MPI_{name}: {text}" if text else f"MPI_{name}"
        super().__init__(self.error_code)
        self._text = text

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.error_code, self._text)

    def __str__(self) -> str:
        return self.error_string

    def __int__(self) -> int:
        return self.error_code

    def __bool__(self) -> bool:
        return self.error_code != 0

    def __eq__(self, other: object) -> bool:
        return int(other) == self.error_code if isinstance(other, (int, Exception)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.error_code)

    def Get_error_code(self) -> int:
        return self.error_code

    def Get_error_class(self) -> int:
        return self.error_class

    def Get_error_string(self) -> str:
        return self.error_string


def error(name: str, text: str) -> Exception:
    """error("ERR_RANK", "dest=7: expected a rank, 0 to 3")."""
    return Exception(CODES[name], text)


def check_length(given: Sized, expected: int) -> None:
    """Raise ValueError, as mpi4py does, unless it has so many items."""
    if len(given) != expected:
        raise ValueError(f"expecting {expected} items, got {len(given)}")


def unsupported(call: str) -> NotImplementedError:
    """The error of a call that this front-end does not have."""
    return NotImplementedError(
        f"{call}: rankwise's mpi4py does not provide it; run a program that needs it on MPI, with mpiexec and without "
        "--mpi4py (docs/how-to/mpi4py.md lists what is provided)"
    )


# ---- the parts of MPI that this front-end does not provide: using one raises an error that names it ----

CALLS = {
    "Open_port", "Close_port", "Publish_name", "Unpublish_name", "Lookup_name", "Register_datarep", "Add_error_class",
    "Add_error_code", "Add_error_string", "Get_hw_resource_info", "Create_keyval", "Intercomm_create",
}  # fmt: skip


class Absent:
    """Stands for a missing class, function or constant of MPI.

    It can be imported, compared and used in isinstance; calling it, or reading an attribute of it, raises the error.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported(f"{self._name}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise unsupported(self._name)

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __repr__(self) -> str:
        return self._name


class AbsentMethod:
    """Stands for a missing method of a class."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Absent:
        return Absent(f"MPI.{owner.__name__}.{self._name}")


def absent(count: int) -> tuple[AbsentMethod, ...]:
    """So many missing methods, for a class to name."""
    return tuple(AbsentMethod() for _ in range(count))
