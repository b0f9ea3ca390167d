"""The jobs that run on this host, found in /proc and mapped read-only.

A job is recognised by its segment, a memfd named rankwise that the ranks and their launcher hold open.
Only the same user and root may open their descriptors. The ranks are not disturbed.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path

from rankwise._native import Operation, RankState, SegmentView, request_stacks
from rankwise.system import proc
from rankwise.system.texts import signal_name

_NAME = "/memfd:rankwise "  # the kernel appends "(deleted)"


@dataclass(frozen=True)
class RankView:
    """The state of one rank at one moment.

    how: "alive", "stopped" (by a signal, or a debugger), "not joined", "left" (its process has closed
    the group), or how it ended: "SIGKILL", "exit 1". behind: other ranks wait for it. restart: 0, or which
    replacement of its rank its process is: 1, 2, ... cpus: the CPUs that its process may use, "0-3,8"; "" if it has
    ended.
    """

    rank: int
    pid: int
    how: str
    state: RankState
    behind: bool
    restart: int
    cpus: str


@dataclass
class RunningJob:
    """A job: its segment, and the processes that hold it open, {(PID namespace, pid there): pid here}.

    path: of a descriptor of the segment. others: the job's other nodes on this host.
    """

    view: SegmentView
    path: str = ""
    holders: dict[tuple[int, int], int] = field(default_factory=dict)
    others: list[RunningJob] = field(default_factory=list)

    @property
    def launcher(self) -> int | None:
        """The pid of the launcher, which also holds the segment; None if there is none."""
        ranks = {_inner_pid_of(self.view.state(rank)) for rank in range(self.view.world_size)}
        others = [pid for inner, pid in self.holders.items() if inner not in ranks]
        parents = {parent_of(pid) for inner, pid in self.holders.items() if inner in ranks}
        return next((pid for pid in others if pid in parents or not parents), None)

    @property
    def command(self) -> str:
        """The launcher's command line, or, without a launcher, the first rank's."""
        pid = self.launcher or next(iter(self.holders.values()), 0)
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return ""
        return _harmless(text)

    def ranks(self) -> list[RankView]:
        """Every rank on this host as it is now."""
        states = [self.view.state(index) for index in range(self.view.world_size)]
        first = self._first()
        behind = _behind(self.view, states, first)
        views = []
        for index, state in enumerate(states):
            process = self.holders.get(_inner_pid_of(state))
            restart, cpus = _variable(process, "RANKWISE_RESTART"), _cpus(process)
            pid = process or state.pid
            views.append(RankView(first + index, pid, self._how(state), state, index in behind, restart, cpus))
        return sorted(chain(views, *(node.ranks() for node in self.others)), key=attrgetter("rank"))

    def stacks(self) -> dict[int, str]:
        """The Python stack of each rank of shm, which makes it in a thread of its own, or why a rank has none.

        Raises OSError if the job has ended.
        """
        with open(self.path, "r+b", buffering=0) as segment:
            of_local = request_stacks(segment.fileno())
        first = self._first()
        stacks = {first + index: _harmless(text) for index, text in of_local.items()}
        for node in self.others:
            stacks |= node.stacks()
        return stacks

    @property
    def world_size(self) -> int:
        """The number of the job's ranks on all hosts."""
        return _variable(self._rank_of_node(), "RANKWISE_WORLD_SIZE") or self.view.world_size

    @property
    def name(self) -> object:
        """The same for all nodes of a job: its user, and the address of torch's rank 0. Of one node, itself."""
        pid = self._rank_of_node()
        try:
            variables = proc.environment(pid) if pid else {}
            address = variables["MASTER_ADDR"], variables["MASTER_PORT"], variables["RANKWISE_WORLD_SIZE"]
            return os.stat(f"/proc/{pid}").st_uid, *address
        except (OSError, KeyError):
            return self.path

    def _first(self) -> int:
        """The number of this segment's first rank; 0 if the job has one node."""
        pid = self._rank_of_node()
        return _variable(pid, "RANKWISE_RANK") - _variable(pid, "RANKWISE_LOCAL_RANK")

    def _rank_of_node(self) -> int | None:
        """The process of a rank if the job has several nodes, of which this segment is one."""
        launcher, size = self.launcher, self.view.world_size
        pids = (pid for pid in self.holders.values() if pid != launcher)
        return next((pid for pid in pids if _variable(pid, "RANKWISE_LOCAL_WORLD_SIZE") == size), None)

    def _how(self, state: RankState) -> str:
        if state.exit_status is not None and (state.ended or state.exit_status):
            return f"exit {state.exit_status}" if state.exit_status >= 0 else signal_name(-state.exit_status)
        if state.ended:
            return "ended"
        if not state.joined:
            return "not joined"
        pid = self.holders.get(_inner_pid_of(state))
        letter = _stat(pid)[proc.STATE] if pid else "X"
        return {"T": "stopped", "t": "stopped", "Z": "ended", "X": "left"}.get(letter, "alive")


def _harmless(text: str) -> str:
    """What another user may have chosen, without what would tell the reader's terminal what to do."""
    return "".join(letter if letter.isprintable() or letter.isspace() else "?" for letter in text)


def _variable(pid: int | None, name: str) -> int:
    """The number in this environment variable of a rank's process; 0 if it is not set."""
    try:
        text = proc.environment(pid).get(name, "") if pid else ""
    except OSError:  # the process has ended
        return 0
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _cpus(pid: int | None) -> str:
    """The CPUs that this process may use, as the kernel lists them; "" if there is no such process."""
    try:
        return proc.fields(f"/proc/{pid}/status").get("Cpus_allowed_list", "")
    except OSError:
        return ""


def running_jobs() -> list[RunningJob]:
    """The jobs whose segments this user may open, the oldest first."""
    by_inode: dict[int, RunningJob] = {}
    for pid in proc.pids():
        _add_segments(pid, by_inode)
    jobs = list(by_inode.values())
    named: dict[object, RunningJob] = {}
    for job in sorted((job for job in jobs if not _is_part(job, jobs)), key=lambda job: job.view.started):
        if (first := named.setdefault(job.name, job)) is not job:
            first.others.append(job)
    return list(named.values())


def _is_part(job: RunningJob, jobs: list[RunningJob]) -> bool:
    """Whether ranks of another job made this segment for themselves: ranks of one node, or a rank for itself alone."""
    holders = set(job.holders.values())
    if job.view.world_size > 1 and not _variable(next(iter(holders), None), "RANKWISE_LOCAL_WORLD_SIZE"):
        return False
    return any(
        holders < set(other.holders.values())
        or (holders == set(other.holders.values()) and other.view.started < job.view.started)
        for other in jobs
    )


def jobs_of(pid: int) -> list[RunningJob]:
    """The jobs in which the process `pid`, or a process that it started, is the launcher or a rank.

    Raises ProcessLookupError if there is no such process or it takes part in no job, and PermissionError
    if it belongs to another user.
    """
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    except PermissionError:
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"user {owner}"
        raise PermissionError(f"process {pid} belongs to {name}: only that user and root may inspect it") from None
    jobs = [
        job
        for job in running_jobs()
        if any(_within(holder, pid) for node in (job, *job.others) for holder in node.holders.values())
    ]
    if not jobs:
        raise ProcessLookupError(
            f"process {pid} has no part in a job that runs now: expected a launcher or a rank of rankwise run or shm"
        )
    return jobs


def parent_of(pid: int) -> int:
    """The parent's pid; 0 if there is no parent or no such process."""
    return int(_stat(pid)[proc.PARENT])


def _within(pid: int, ancestor: int) -> bool:
    while pid not in (ancestor, 0):
        pid = parent_of(pid)
    return pid != 0


def _stat(pid: int) -> list[str]:
    """What /proc says of the process; X and 0, as state and parent, if there is no such process."""
    try:
        return proc.stat(pid)
    except OSError:
        return ["X", "0"]


def _add_segments(pid: int, jobs: dict[int, RunningJob]) -> None:
    """Add the segments that a process holds open to `jobs`, by inode."""
    for path in _descriptors(pid):
        try:
            inode = os.stat(path).st_ino
            if inode not in jobs:
                # A pipe that another user calls like a segment must not keep this process waiting.
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    jobs[inode] = RunningJob(SegmentView(fd), path)
                finally:
                    os.close(fd)
            jobs[inode].holders[_inner_pid(pid)] = pid
        except (OSError, ValueError):  # the process has ended, or the segment belongs to another version of rankwise
            continue


def _descriptors(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # the process has ended, or belongs to another user
        return
    for name in names:
        path = f"{folder}/{name}"
        try:
            if os.readlink(path).startswith(_NAME):
                yield path
        except OSError:
            continue


def _inner_pid(pid: int) -> tuple[int, int]:
    """The process's PID namespace and its pid there, which in a container differs from the pid here."""
    namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    pids = proc.fields(f"/proc/{pid}/status").get("NSpid", str(pid))
    return namespace, int(pids.split()[-1])


def _inner_pid_of(state: RankState) -> tuple[int, int]:
    return state.pid_namespace, state.pid


def _behind(view: SegmentView, states: list[RankState], first: int) -> set[int]:
    """The ranks that others wait for, and that do not themselves wait for another rank.

    A rank in operation number s of a group waits for those that have not begun theirs; one in a
    receive or send, for its peer. Members begin a group with "init", which counts as number 0.
    """
    last: list[dict[int, int]] = []  # for each rank the last operation that it began in each group
    for rank in range(len(states)):
        begun: dict[int, int] = {0: -1}  # every rank is a member of the first group
        for operation in view.operations(rank):
            begun[operation.group] = max(begun.get(operation.group, -1), _number(operation))
        last.append(begun)
    waits: dict[int, set[int]] = {}
    for rank, state in enumerate(states):
        now = state.operation
        if now is None or not state.inside:
            continue
        if now.peer is not None:
            # In other groups the ranks are numbered differently, and the segment does not say how.
            peer = now.peer - first if now.group == 0 and now.peer >= 0 else -1
            waits[rank] = {peer} if 0 <= peer < len(states) else set()
        else:
            number = _number(now)
            waits[rank] = {r for r, begun in enumerate(last) if begun.get(now.group, number) < number}
    awaited = set().union(*waits.values()) if waits else set()
    return {rank for rank in awaited if not waits.get(rank)}


def _number(operation: Operation) -> int:
    return 0 if operation.name == "init" else operation.sequence
