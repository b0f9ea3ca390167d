"""mpi4py's communicators and requests, whose calls are recorded.

They are instances of subclasses of mpi4py's classes over the same MPI handles, so other extensions accept them. Ranks
recognise a communicator by its id, which follows from the call that made it.
"""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from rankwise import _watch as watch
from rankwise.frontends.watch.operations import EQUAL, MAKES_COMM, MPI, MPI_NUMBERS, REDUCTIONS, WAITS, Operation

# These make a communicator of the same ranks.
_COPIES = ("Clone", "Dup", "Dup_with_info", "Idup", "Idup_with_info")


def identity(*parts: object) -> int:
    """The id of a communicator: the same on all ranks for the same parts, and never 0."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def adopt(module: ModuleType) -> None:
    """Replace COMM_WORLD, COMM_SELF, Request and Prequest in mpi4py.MPI by watched ones."""
    _Adoption(module)


class _Adoption:
    """The watched classes for the mpi4py.MPI that the program has imported."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.classes: dict[type, type] = {}
        self.groups_made: dict[tuple[object, ...], int] = {}
        reductions = [(getattr(mpi, name), n) for n, name in enumerate(REDUCTIONS) if hasattr(mpi, name)]
        watch.set_objects(mpi.IN_PLACE, reductions)
        mpi.Request, mpi.Prequest = self.request_class(mpi.Request), self.request_class(mpi.Prequest)
        if mpi.Is_initialized():
            self.adopt_predefined()
        else:
            mpi.Init, mpi.Init_thread = self.initializing(mpi.Init), self.initializing(mpi.Init_thread)

    def adopt_predefined(self) -> None:
        mpi = self.mpi
        mpi.COMM_WORLD = self.watched(mpi.COMM_WORLD, identity("world"), "COMM_WORLD")
        mpi.COMM_SELF = self.watched(mpi.COMM_SELF, identity("self"), "COMM_SELF", compared=False)
        self.watch_the_end()

    def initializing(self, function: Any) -> Callable[..., Any]:
        """MPI.Init or Init_thread, where the program calls it itself. No communicator can be used before."""

        @wraps(function)
        def initialize(*args: Any) -> Any:
            result = function(*args)
            self.adopt_predefined()
            return result

        return initialize

    # ---- requests ----

    def request_class(self, base: type) -> type:
        """A subclass of a class of requests whose waits are recorded. Other requests count as its instances, too."""

        class Requests(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, base)

        methods: dict[str, Any] = {"__slots__": (), "__module__": base.__module__, "__doc__": base.__doc__}
        for name in WAITS:
            of_all = name.lower() != "wait"
            method = watch.function(getattr(base, name), MPI_NUMBERS[name], takes_self=not of_all)
            methods[name] = classmethod(method) if of_all else method
        made = Requests(base.__name__, (base,), methods)
        self.classes[base] = made
        return made

    def converter(self, name: str) -> type | None:
        """The class of the request that the method of this name returns."""
        if name.endswith("_init"):
            return self.mpi.Prequest  # type: ignore[no-any-return]
        starts = name[:2].lower() in ("is", "ir", "ib", "ig", "ia", "ie") or name.startswith("Ineighbor")
        return self.mpi.Request if starts else None

    # ---- communicators ----

    def comm_class(self, base: type) -> type:
        """A subclass of a class of communicators whose calls are recorded."""
        if hasattr(base, "_watched"):
            return base
        if base not in self.classes:
            slots = ("_watched", "_id", "_label")
            methods: dict[str, Any] = {"__slots__": slots, "__module__": base.__module__, "__doc__": base.__doc__}
            methods["__reduce__"] = _pickled(base)
            for operation in MPI:
                if operation.name not in WAITS and hasattr(base, operation.name):
                    methods[operation.name] = self.method(base, operation)
            for name, equal in EQUAL.items():
                methods[name] = self.recorded(base, name, equal)
            self.classes[base] = type(base.__name__, (base,), methods)
        return self.classes[base]

    def method(self, base: type, operation: Operation) -> Any:
        recorded = self.recorded(base, operation.name, operation.name)
        if operation.name in MAKES_COMM:
            return self.maker(recorded, operation.name)
        if operation.name == "Create_group":
            return self.group_maker(recorded)
        return _freeing(recorded) if operation.name in ("Free", "Disconnect") else recorded

    def recorded(self, base: type, name: str, recorded_as: str) -> Any:
        number = MPI_NUMBERS[recorded_as]
        of = MPI[number]
        return watch.function(
            getattr(base, name),
            number,
            buffer=of.buffer,
            other=of.other,
            root=of.root,
            reduction=of.reduction,
            tag=of.tag,
            convert=self.converter(name),
        )

    def maker(self, recorded: Any, name: str) -> Callable[..., Any]:
        """A method of all ranks of a communicator that makes others. Different ones have different first ranks."""

        @wraps(recorded)
        def make(comm: Any, *args: Any, **keywords: Any) -> Any:
            result = recorded(comm, *args, **keywords)
            if not hasattr(comm, "_watched"):
                return result
            number = watch.calls(comm._watched)
            made, *request = result if isinstance(result, tuple) else (result,)
            if self.is_usable(made):
                label = f"{name} #{number} of {comm._label}"
                first = None
                if name not in _COPIES:
                    first = self.world_ranks(made.Get_group(), [0])[0]
                    label += f" (from rank {first})"
                made = self.watched(made, identity(comm._id, number, first), label)
            return (made, *map(self.mpi.Request, request)) if request else made

        return make

    def group_maker(self, recorded: Any) -> Callable[..., Any]:
        """Create_group, which only the members of the new communicator call."""

        @wraps(recorded)
        def make(comm: Any, group: Any, tag: int = 0) -> Any:
            made = recorded(comm, group, tag)
            if not (hasattr(comm, "_watched") and self.is_usable(made)):
                return made
            members = tuple(self.world_ranks(made.Get_group(), range(made.Get_size())))
            key = (comm._id, members, tag)
            self.groups_made[key] = number = self.groups_made.get(key, 0) + 1
            label = f"Create_group #{number} of {comm._label} (from rank {members[0]})"
            return self.watched(made, identity(*key, number), label)

        return make

    def is_usable(self, comm: Any) -> bool:
        return isinstance(comm, self.mpi.Intracomm) and comm != self.mpi.COMM_NULL

    def world_ranks(self, group: Any, ranks: Any) -> list[int]:
        """The ranks in COMM_WORLD of these members of a group, which is freed."""
        world = self.mpi.COMM_WORLD.Get_group()
        found: list[int] = group.Translate_ranks(list(ranks), world)
        world.Free()
        group.Free()
        return found

    def watched(self, comm: Any, id: int, label: str, compared: bool = True) -> Any:
        """The communicator as an instance of a watched class. compared: whether it has several ranks."""
        found = self.comm_class(type(comm))(comm)
        found._watched, found._id, found._label = watch.add_comm(id if compared else 0, label), id, label
        return found

    # ---- the end ----

    def watch_the_end(self) -> None:
        """MPI.Finalize, which mpi4py calls after the program, waits for all ranks: it is the last call of each."""
        mpi, finalize, number = self.mpi, self.mpi.Finalize, MPI_NUMBERS["Finalize"]
        world = mpi.COMM_WORLD._watched

        @wraps(finalize)
        def watched_finalize() -> None:
            begun = watch.begin(world, number)
            watch.check()
            finalize()
            watch.end(begun, False)

        mpi.Finalize = watched_finalize

        @atexit.register
        def ended() -> None:
            if mpi.Is_initialized() and not mpi.Is_finalized():
                watch.begin(world, number, site="the end of the program")
                watch.check()


def _pickled(base: type) -> Callable[[Any], Any]:
    """How a communicator is pickled: the predefined ones by their names, as mpi4py does; the others refuse."""

    def reduce(comm: Any) -> Any:
        label = getattr(comm, "_label", "")
        return label if label in ("COMM_WORLD", "COMM_SELF") else base(comm).__reduce__()

    return reduce


def _freeing(recorded: Any) -> Callable[[Any], None]:
    """Free or Disconnect. A communicator that MPI makes later may have the same handle, but is another one."""

    @wraps(recorded)
    def free(comm: Any) -> None:
        recorded(comm)
        if hasattr(comm, "_watched"):
            watch.remove_comm(comm._watched)
            del comm._watched

    return free
