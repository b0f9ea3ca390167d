"""The parts of MPI that this front-end does not provide: using one raises an error that names it."""

from __future__ import annotations

from typing import Any

from rankwise.frontends.mpi4py.errors import lacks, unsupported

_METHODS = {
    "Comm": "Create_errhandler Get_errhandler Call_errhandler Create_keyval Free_keyval Get_failed Ack_failed Agree "
    "Iagree Shrink Ishrink Revoke Is_revoked Psend_init Precv_init Join Get_remote_size Get_remote_group Merge "
    "Create_intercomm",
    "Intracomm": "Spawn Spawn_multiple Accept Connect Create_graph Create_dist_graph Create_dist_graph_adjacent "
    "Create_from_groups Graph_map Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv "
    "Neighbor_alltoallw Ineighbor_allgather Ineighbor_allgatherv Ineighbor_alltoall Ineighbor_alltoallv "
    "Ineighbor_alltoallw neighbor_allgather neighbor_alltoall",
    "Datatype": "Create_darray Create_f90_integer Create_f90_real Create_f90_complex Get_envelope Get_contents decode "
    "Match_size Get_attr Set_attr Create_keyval Pack_external Unpack_external",
    "Group": "Create_from_session_pset",
    "Win": "Create Create_dynamic Allocate Attach Detach Put Get Accumulate Get_accumulate Fetch_and_op "
    "Compare_and_swap Rput Rget Raccumulate Rget_accumulate Post Start Complete Wait Test Set_info Set_attr "
    "Delete_attr Create_keyval Free_keyval Create_errhandler Get_errhandler Set_errhandler Call_errhandler",
}
_HANDLES = "py2f f2py handle fromhandle toint fromint"
_NAMES = {
    "Open_port", "Close_port", "Publish_name", "Unpublish_name", "Lookup_name", "Register_datarep", "Add_error_class",
    "Add_error_code", "Add_error_string", "Get_hw_resource_info", "Create_keyval", "Intercomm_create",
}  # fmt: skip


class Absent:
    """Stands for a missing class or constant of MPI.

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


def add_absent(*kinds: type) -> None:
    """Give the classes the methods that only raise the error."""
    for kind in kinds:
        for name in f"{_METHODS.get(kind.__name__, '')} {_HANDLES}".split():
            if not hasattr(kind, name):
                setattr(kind, name, lacks(f"MPI.{kind.__name__}.{name}"))


def missing(name: str) -> Any:
    """A name that the module does not have. Raises AttributeError unless MPI has such a call."""
    if name in _NAMES:
        return lacks(f"MPI.{name}")
    raise AttributeError(f"module 'mpi4py.MPI' has no attribute {name!r} (rankwise's mpi4py; MPI's may have it)")
