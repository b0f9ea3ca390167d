"""The address at which other hosts reach this one."""

from __future__ import annotations

import socket

from rankwise.contract.errors import BackendUnavailable

REMEDY = "set MASTER_ADDR to an address at which every host reaches rank 0"


def own_address(master: str, backend: str) -> str:
    """The source address of this host's route to `master`, a name or an address.

    Raises BackendUnavailable, for `backend`, if the name cannot be resolved.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    except socket.gaierror as error:
        what = f"host {socket.gethostname()!r} cannot resolve the name {master!r} ({error.strerror})"
        raise BackendUnavailable(backend, what, REMEDY) from error
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        address: str = probe.getsockname()[0]
    return address
