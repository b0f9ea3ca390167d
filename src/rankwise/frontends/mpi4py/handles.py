"""Handles: what a communicator, datatype, group, op or request of MPI is in Python."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from rankwise.frontends.mpi4py.errors import absent, error

T = TypeVar("T")
H = TypeVar("H", bound="Handle[Any]")

new = object.__new__


class Handle(Generic[T]):
    """A Python object that refers to an object of MPI, or to none: then it is a null handle, which is false.

    Two handles are equal if they refer to the same object. `Kind(handle)` makes another one. The predefined ones have
    a name, by which they can be pickled.
    """

    _root: ClassVar[type[Handle[Any]]]
    """The class that all handles of the kind derive from."""

    _null: ClassVar[str]
    """The error class of a call on a null handle."""

    _by_value: ClassVar[bool] = False
    """Whether a pickle of a handle makes a copy of what it refers to."""

    __slots__ = ("_h",)
    _h: T | None
    """What it refers to."""

    py2f, f2py, handle, fromhandle, toint, fromint = absent(6)

    def __new__(cls: type[H], handle: Any = None, *args: Any, **options: Any) -> H:
        if handle is not None and not isinstance(handle, cls._root):
            raise TypeError(
                f"{cls.__name__}: expected an MPI {cls._root.__name__} or None, got {type(handle).__name__}"
            )
        self = new(cls)
        self._h = None if handle is None else handle._h
        return self

    def __init__(self, handle: Any = None, *args: Any, **options: Any) -> None:
        pass

    def __init_subclass__(cls, root: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if root:
            cls._root = cls

    @classmethod
    def _of(cls: type[H], h: Any) -> H:
        """A handle of this object."""
        self = new(cls)
        self._h = h
        return self

    def _live(self) -> T:
        """The object. Raises an MPI error for a null handle."""
        if self._h is None:
            raise error(self._null, f"this {self._root.__name__} is null, or has been freed")
        return self._h

    def Free(self) -> None:
        """Make this handle null, unless it is a predefined one. An operation in progress goes on."""
        self._live()
        if id(self) not in _NAME_OF:
            self._h = None

    def _freed(self) -> T:
        """Make this handle null; returns the object. Raises an MPI error for a predefined one."""
        h = self._live()
        if self.is_predefined:
            raise error(self._null, f"{name_of(h)} is predefined and cannot be freed")
        self._h = None
        return h

    def free(self) -> None:
        """Free it, unless it is null or predefined."""
        if not self.is_predefined:
            self.Free()

    def _named(self: H, name: str) -> H:
        """Make this a predefined handle of that name."""
        NAMED[name] = self
        _NAME_OF[id(self)] = name
        if self._h is not None:
            _NAME_OF.setdefault(id(self._h), name)
        return self

    @property
    def is_predefined(self) -> bool:
        return self._h is None or id(self._h) in _NAME_OF

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self._root):
            return NotImplemented
        return self._h is other._h

    def __hash__(self) -> int:
        return id(self._h)

    def __bool__(self) -> bool:
        return self._h is not None

    def __reduce_ex__(self, protocol: Any) -> Any:
        if (name := _NAME_OF.get(id(self))) is not None:
            return predefined, (name,)
        if self._h is None:
            return type(self), ()
        if (name := _NAME_OF.get(id(self._h))) is not None:
            return _another, (type(self), name)
        if self._by_value:
            return self._of, (self._h,)
        raise ValueError(f"cannot pickle an MPI {type(self).__name__} that the program has made")


class Named(Handle[T]):
    """A handle of an object that has a name."""

    def Get_name(self) -> str:
        h: Any = self._h
        return f"MPI_{self._root.__name__.upper()}_NULL" if h is None else h.name

    def Set_name(self, name: str) -> None:
        h: Any = self._live()
        h.name = name

    name = property(Get_name, Set_name)


NAMED: dict[str, Any] = {}
"""The predefined handles by name, without MPI."""

_NAME_OF: dict[int, str] = {}  # by the id of the handle, and of the object that it refers to; both live forever


def name_of(h: object) -> str:
    """The name of a predefined object; "" for another one."""
    return _NAME_OF.get(id(h), "")


def predefined(name: str) -> Any:
    """The predefined handle of this name."""
    return NAMED[name]


def _another(kind: type[Handle[Any]], name: str) -> Handle[Any]:
    return kind(NAMED[name])


class Errhandler(Handle[str], root=True):
    """An error handler, which is only remembered: errors are exceptions, whatever is set."""

    _null = "ERR_ERRHANDLER"


ERRHANDLER_NULL = Errhandler()._named("ERRHANDLER_NULL")
ERRORS_RETURN, ERRORS_ABORT, ERRORS_ARE_FATAL = (
    Errhandler._of(name)._named(name) for name in ("ERRORS_RETURN", "ERRORS_ABORT", "ERRORS_ARE_FATAL")
)
