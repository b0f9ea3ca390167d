"""What `import mpi4py` finds under `rankwise run --mpi4py`: rankwise's MPI, and the rest of an installed mpi4py.

mpi4py's parts that are pure Python (util, run, bench, typing) are used as they are, if it is installed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import SimpleNamespace

__version__ = "4.1.2"
"""The version of mpi4py whose interface it is."""

_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for _folder in sys.path:
    _installed = os.path.join(_folder or os.curdir, "mpi4py")
    if os.path.abspath(_folder) != _here and os.path.isfile(os.path.join(_installed, "__init__.py")):
        __path__.append(_installed)
        break


class Rc(SimpleNamespace):
    """mpi4py.rc: options that programs set before they import MPI. rankwise needs none of them."""

    def __call__(self, **options: object) -> None:
        vars(self).update(options)


rc = Rc(
    initialize=True,
    threads=True,
    thread_level="multiple",
    finalize=None,
    fast_reduce=True,
    recv_mprobe=True,
    irecv_bufsz=32768,
    errors="exception",
)
sys.modules["mpi4py.rc"] = rc  # type: ignore[assignment]  # so that `import mpi4py.rc` finds it


def get_config() -> dict[str, str]:
    """mpi4py's build options: there was no compiler."""
    return {}


def get_include() -> str:
    """Raise the error of what needs mpi4py's headers."""
    from rankwise.frontends.mpi4py.errors import unsupported

    raise unsupported("mpi4py.get_include (cimport mpi4py)")


def profile(name: str, *, path: object = None) -> None:
    """Raise the error of MPI's profiling libraries."""
    from rankwise.frontends.mpi4py.errors import unsupported

    raise unsupported("mpi4py.profile")


def __getattr__(name: str) -> object:
    if name == "MPI":
        return import_module("mpi4py.MPI")
    raise AttributeError(f"module 'mpi4py' has no attribute {name!r}")


__all__ = ["MPI"]
