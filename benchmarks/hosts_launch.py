"""How hosts.py starts the ranks of each library on the hosts of a network."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multihost.network import CARD, PORT, Network, rank_variables
from rankwise.tools.bench import peers
from rankwise.tools.bench.workers import Launch

RANK_PROGRAM = str(Path(__file__).with_name("hosts_rank.py"))
MPIS = ("mpich", "openmpi")
LIBRARIES = """\
rankwise                  with the backend that rw.init chooses without another launcher
rankwise/BACKEND          with this backend: gloo or hierarchical
rankwise@MPI              under mpiexec, with the backend that rw.init chooses there; MPI: mpich or openmpi
rankwise/BACKEND@MPI      the same with this backend: mpi, gloo or hierarchical
any of these + NAME=ALGORITHM+...   with these algorithms forced, as by RANKWISE_ALGORITHM
gloo                      torch.distributed's, called directly
mpich, openmpi            mpi4py, over TCP between the hosts
"""

ON_EACH_HOST = "nsenter --target={pid} --net --pid --mount"
# Used instead of ssh: `agent [-x] HOST COMMAND...`. It gives each host a name, by which the MPIs distinguish them.
AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
pids=(0 {pids})
exec nsenter --target=${{pids[${{host#host}}]}} --net --pid --mount unshare --uts sh -c "hostname $host; $*"
"""
MPICH = "-launcher ssh -launcher-exec {agent} -iface {card} -hosts {hosts} -ppn {block} -n {n}"
OPEN_MPI = (
    # No tree: a daemon on one host cannot start one on another, because it cannot see the other host's processes.
    "--prtemca plm_ssh_agent {agent} --prtemca plm_ssh_no_tree_spawn 1 --prtemca prte_if_include {card} "
    "--mca pml ob1 --mca btl tcp,sm,self --mca btl_tcp_if_include {card} "
    "--map-by {order}:oversubscribe --bind-to none --host {slots} -n {n}"
)
MPI_ENVIRONMENT = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "UCX_LOG_LEVEL": "fatal",
    "HWLOC_HIDE_ERRORS": "2",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Library:
    """One of LIBRARIES. name: as it was given. peer: gloo or an MPI without rankwise. algorithms: forced ones."""

    name: str
    peer: bool
    backend: str
    mpi: str
    algorithms: str = ""

    @classmethod
    def parse(cls, name: str) -> Library:
        """ValueError if `name` is none of LIBRARIES."""
        if name == "gloo":
            return cls(name, True, "", "")
        if name in MPIS:
            return cls(name, True, "", name)
        match = re.fullmatch(r"rankwise(?:/(\w+))?(?:@(mpich|openmpi))?((?:\+\w+=\w+)*)", name)
        if not match:
            raise ValueError(name)
        return cls(name, False, match[1] or "", match[2] or "", match[3][1:].replace("+", ","))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of rankwise that make the choice."""
        chosen = {"RANKWISE_BACKEND": self.backend, "RANKWISE_ALGORITHM": self.algorithms}
        return {name: value for name, value in chosen.items() if value}


class Launches:
    """The commands that start the ranks of libraries on one network, in one order of ranks.

    placement: each rank's host. mpis: the folder with the MPIs' environments. folder: for temporary files.
    """

    def __init__(self, network: Network, placement: Sequence[int], mpis: Path, folder: Path) -> None:
        self._pids = [host.pid for host in network.hosts]
        self._placement, self._mpis, self._folder = placement, mpis, folder
        self._agent = folder / "agent"
        self._agent.write_text(AGENT.format(pids=" ".join(map(str, self._pids))))
        self._agent.chmod(0o700)
        self._port = PORT

    def of(self, library: Library) -> Launch:
        """Raises peers.Missing if the library is not installed."""
        if library.mpi:
            return self._mpi(library)
        self._port += 1  # the ranks of several libraries run at the same time
        return self._direct(library)

    def _direct(self, library: Library) -> Launch:
        """A shell starts each rank with the environment that torchrun would give it."""
        if library.peer:
            peers.find(library.name, self._mpis)
        lines = []
        for rank, host in enumerate(self._placement):
            variables = rank_variables(self._placement, rank, self._port)
            if library.peer:  # tools/bench/rank.py reads its rank here
                variables |= {"RANKWISE_RANK": str(rank), "RANKWISE_WORLD_SIZE": str(len(self._placement))}
                variables["GLOO_SOCKET_IFNAME"] = CARD
            variables |= library.variables
            words = [f"{name}={value}" for name, value in variables.items()]
            lines.append(f'{ON_EACH_HOST.format(pid=self._pids[host])} env {shlex.join(words)} "$@" &')
        launcher = ("sh", "-c", "\n".join([*lines, "wait"]), "hosts")
        return Launch("gloo" if library.peer else "rankwise", launcher, (sys.executable, RANK_PROGRAM))

    def _mpi(self, library: Library) -> Launch:
        """mpiexec runs in the network of the first host, and starts processes on the others with the agent."""
        found = peers.find(library.mpi, self._mpis)
        each = self._placement.count(0)
        names = [f"host{number}" for number in range(1, len(self._pids) + 1)]
        in_blocks = list(self._placement) == sorted(self._placement)
        options = (MPICH if library.mpi == "mpich" else OPEN_MPI).format(
            agent=self._agent,
            card=CARD,
            hosts=",".join(names),
            slots=",".join(f"{name}:{each}" for name in names),
            block=each if in_blocks else 1,
            order="slot" if in_blocks else "node",
            n=len(self._placement),
        )
        first = f"nsenter --target={self._pids[0]} --net unshare --uts"
        command = f'hostname {names[0]}; exec {shlex.quote(found.launcher[0])} {options} "$@"'
        python = found.python if library.peer else peers.with_rankwise(found.python)
        environment = {**MPI_ENVIRONMENT, **found.environment, "TMPDIR": str(self._folder), **library.variables}
        launcher = (*first.split(), "sh", "-c", command, "hosts")
        return Launch("mpi" if library.peer else "rankwise", launcher, (*python, RANK_PROGRAM), environment)
