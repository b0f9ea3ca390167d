"""The conformance suite over hierarchical with MPI between hosts, which are told apart by the arguments alone.

    mpiexec -n 4 python hosts_over_mpi.py 0 0 1 1

The arguments are the hosts of the ranks. Rank 0 prints what was found.
"""

from __future__ import annotations

import os
import sys

from rankwise.backends.hierarchical import communicator as hierarchical
from rankwise.backends.hierarchical.communicator import HierarchicalCommunicator
from rankwise.backends.mpi.communicator import MpiCommunicator
from rankwise.group.group import Group
from rankwise.launch.environment import find_job
from rankwise.system import locality
from rankwise.system.settings import Settings
from rankwise.testing.conformance import show_report
from rankwise.testing.suite import check_group


def main(hosts: list[str]) -> int:
    job = find_job(os.environ, Settings.read())
    here = {**locality.locality(), "host of the test": hosts[job.rank]}
    locality.locality = lambda: here
    comm = hierarchical.open_communicator(job, 90.0)
    assert isinstance(comm, HierarchicalCommunicator)
    assert isinstance(comm._flat, MpiCommunicator)
    with Group(comm, backend="hierarchical") as group:
        report = check_group(group)
    return show_report(report) if job.rank == 0 else 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
