"""mpi4py's communicators and requests, whose calls are recorded.

They are instances of subclasses of mpi4py's classes over the same MPI handles, so other extensions accept them. Ranks
recognise a communicator by its id, which follows from the call that made it.
"""

from __future__ import annotations

import atexit
import hashlib
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

from rankwise import _watch
from rankwise.frontends.watch.operations import EQUAL, MAKES_COMM, MPI, MPI_NUMBERS, REDUCTIONS, WAITS

# These make a communicator of the same ranks.
_COPIES = ("Clone", "Dup", "Dup_with_info", "Idup", "Idup_with_info")


def identity(*parts: object) -> int:
    """The id of a communicator: the same on all ranks for the same parts, and never 0."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


def adopt(module: ModuleType) -> None:
    """Replace COMM_WORLD, COMM_SELF, Request, Prequest and Finalize in mpi4py.MPI by watched ones."""
    _Adoption(module)


class _Adoption:
    """The watched classes for the mpi4py.MPI that the program has imported."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.classes: dict[type, type] = {}
        self.groups_made: Counter[int] = Counter()
        reductions = [(getattr(mpi, name), n) for n, name in enumerate(REDUCTIONS) if hasattr(mpi, name)]
        _watch.set_objects(mpi.IN_PLACE, reductions)
        mpi.Request, mpi.Prequest = self.request_class(mpi.Request), self.request_class(mpi.Prequest)
        if mpi.Is_initialized():
            self.adopt_predefined()
        else:
            mpi.Init, mpi.Init_thread = self.initializing(mpi.Init), self.initializing(mpi.Init_thread)

    def adopt_predefined(self) -> None:
        mpi = self.mpi
        mpi.COMM_WORLD = self.watched(mpi.COMM_WORLD, identity("world"), "COMM_WORLD")
        mpi.COMM_SELF = self.watched(mpi.COMM_SELF, 0, "COMM_SELF")  # it has one rank: nothing is compared
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
            method = _watch.function(getattr(base, name), MPI_NUMBERS[name])
            methods[name] = method if name.lower() == "wait" else staticmethod(method)
        return Requests(base.__name__, (base,), methods)

    # ---- communicators ----

    def comm_class(self, base: type) -> type:
        """A subclass of a class of communicators whose calls are recorded."""
        if hasattr(base, "_watched"):
            return base
        if base not in self.classes:
            slots = ("_watched", "_id", "_label")
            methods: dict[str, Any] = {"__slots__": slots, "__module__": base.__module__, "__doc__": base.__doc__}
            methods["__reduce__"] = _pickled(base)
            names = {operation.name: operation.name for operation in MPI if operation.name not in WAITS} | EQUAL
            for name, recorded_as in names.items():
                if hasattr(base, name):
                    of = MPI[number := MPI_NUMBERS[recorded_as]]
                    methods[name] = _watch.function(getattr(base, name), number, of.places, self.converter(name))
            self.classes[base] = type(base.__name__, (base,), methods)
        return self.classes[base]

    def converter(self, name: str) -> Callable[[Any, Any], Any] | None:
        """What the method of this name does with its communicator and the result of MPI's, and returns."""
        if name in MAKES_COMM or name == "Create_group":
            return partial(self.made, name)
        if name in ("Free", "Disconnect"):
            return _freed
        if name.endswith("_init"):
            return lambda comm, result: self.mpi.Prequest(result)
        starts = name[:2].lower() in ("is", "ir", "ib", "ig", "ia", "ie") or name.startswith("Ineighbor")
        return (lambda comm, result: self.mpi.Request(result)) if starts else None

    def made(self, name: str, comm: Any, result: Any) -> Any:
        """The result of a call that makes a communicator, with a watched one. Different ones have different members."""
        made, *request = result if isinstance(result, tuple) else (result,)
        if hasattr(comm, "_watched") and isinstance(made, self.mpi.Intracomm) and made != self.mpi.COMM_NULL:
            members = self.world_ranks(made)
            number = _watch.calls(comm._watched)
            if name == "Create_group":  # which only the members call
                key = identity(comm._id, members)
                self.groups_made[key] += 1
                number = self.groups_made[key]
            label = f"{name} #{number} of {comm._label}" + ("" if name in _COPIES else f" (from rank {members[0]})")
            made = self.watched(made, identity(comm._id, name, number, members), label)
        return (made, *map(self.mpi.Request, request)) if request else made

    def world_ranks(self, comm: Any) -> list[int]:
        """The ranks in COMM_WORLD of a communicator's members."""
        members, world = comm.Get_group(), self.mpi.COMM_WORLD.Get_group()
        ranks: list[int] = members.Translate_ranks(None, world)
        world.Free()
        members.Free()
        return ranks

    def watched(self, comm: Any, identifier: int, label: str) -> Any:
        """The communicator as an instance of a watched class."""
        watched = self.comm_class(type(comm))(comm)
        watched._watched, watched._id, watched._label = _watch.add_comm(identifier, label), identifier, label
        return watched

    # ---- the end ----

    def watch_the_end(self) -> None:
        """MPI.Finalize, which mpi4py calls after the program, waits for all ranks: it is the last call of each."""
        mpi, finalize, number = self.mpi, self.mpi.Finalize, MPI_NUMBERS["Finalize"]
        world = mpi.COMM_WORLD._watched

        @wraps(finalize)
        def watched_finalize() -> None:
            begun = _watch.begin(world, number)
            _watch.check()
            finalize()
            _watch.end(begun, False)

        mpi.Finalize = watched_finalize

        @atexit.register
        def ended() -> None:
            if mpi.Is_initialized() and not mpi.Is_finalized():
                _watch.begin(world, number, site="the end of the program")
                _watch.check()


def _pickled(base: type) -> Callable[[Any], Any]:
    """How a communicator is pickled: the predefined ones by their names, as mpi4py does; the others refuse."""

    def reduce(comm: Any) -> Any:
        label = getattr(comm, "_label", "")
        return label if label in ("COMM_WORLD", "COMM_SELF") else base(comm).__reduce__()

    return reduce


def _freed(comm: Any, result: None) -> None:
    """After Free or Disconnect. A communicator that MPI makes later may have the same handle, but is another one."""
    if hasattr(comm, "_watched"):
        _watch.remove_comm(comm._watched)
        del comm._watched
