"""hierarchical: shared memory within each host, another engine between hosts.

Three communicators work together (terms: see `hosts`). `local`: the members of this host. `lane`:
one member of every host, for the data that all ranks need; every lane carries an equal share, so
that several members drive the network. `flat`: all ranks, for data that goes from one rank to one other.

all_reduce is reduce_scatter within the hosts, all_reduce of each lane's share, all_gather within
(the hierarchical scheme of Jia et al., 2018, arXiv:1807.11205). To all-reduce a share, each host
reduces one piece, and all hosts gather the pieces. So each of H hosts sends 2 (H - 1) / H of the
tensor's bytes, and receives as many, which is the minimum (Patarasuk and Yuan, 2009). The pieces are
reduced by the native core's kernels in the order of the hosts, so all ranks have the same bits. The other operations
work likewise, and never send a host what it already has.

Where latency dominates (small data), a single lane carries all data, and reduces it by the engine's own all_reduce or
reduce.

f16, bf16 and fp8 are sent as f32 until they are reduced, since they must be rounded only once.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rankwise import _native
from rankwise._native import HostStream, address
from rankwise.backends import registry, tuning
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.composed.communicator import ComposedCommunicator
from rankwise.backends.composed.memory import all_gather_bytes, broadcast_bytes
from rankwise.backends.composed.part_errors import latest, of_the_group
from rankwise.backends.composed.partial import Partial, carried_as
from rankwise.backends.composed.survivors import shrunk
from rankwise.backends.hierarchical import one_lane
from rankwise.backends.hierarchical.hosts import Layout, locality_mark, log_neighbour, moves
from rankwise.backends.hierarchical.inner_group import InnerGroup, InnerIntegers, NoInnerGroup
from rankwise.backends.hierarchical.p2p import Channel
from rankwise.backends.native import shm
from rankwise.backends.native.communicator import join
from rankwise.contract.communicator import Collectives, bind
from rankwise.contract.errors import CollectiveTimeout, PeerLostError, RankwiseError
from rankwise.contract.failure import Failure
from rankwise.contract.failure_kinds import ERROR, LOST
from rankwise.contract.job import Job
from rankwise.contract.operations import BARRIER, Call, divided
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp
from rankwise.contract.work import Work
from rankwise.system.settings import Settings

T = TypeVar("T")

_BYTE = DType.U8
Carried = tuple[int, list[int], Work[None] | None]  # the address of a share, all members' shares, the pending transfer


def open_communicator(job: Job, timeout: float) -> OpenCommunicator:
    """Meet all ranks by the job's engine, then this host's ranks.

    The ranks of one launcher use its shared memory, and the ranks of two launchers count as being on two hosts. If
    every host has one rank, the result is the engine's communicator. If one host has all ranks, the result uses only
    shared memory, and RANKWISE_ALGORITHM names algorithms of `shm`.
    """
    flat: ComposedCommunicator = registry.built_in(job.engine)(job, timeout, algorithms={})  # it has its own algorithms
    inode = None if job.segment_fd is None else os.fstat(job.segment_fd).st_ino
    marks = all_gather_bytes(flat, locality_mark(inode))
    layout = Layout.of(marks)
    host = layout.host[flat.rank]
    number, size = layout.local(flat.rank), len(layout.members[host])
    if number == 0:
        log_neighbour(marks, flat.rank)
    token = broadcast_bytes(flat, secrets.token_bytes(64))  # the ranks of a host meet under a secret name
    name = f"{token[:32].hex()} {host}"
    meeting = Job(
        number, size, number, size, "hierarchical", name, token[32:], segment_fd=job.segment_fd, tuning=job.tuning
    )
    if layout.hosts == 1:
        flat.close()
        return shm.open_communicator(meeting, timeout)
    algorithms = Settings.read().algorithms
    if layout.hosts == flat.world_size:
        flat.force(algorithms)
        return flat
    segment, _ = shm.segment_of(meeting, timeout)
    local = join(segment, number, timeout, "shm", process=True, algorithms={}, part=True, tuning=job.tuning)
    return assemble(flat, local, layout, algorithms)


def assemble(
    flat: OpenCommunicator, local: OpenCommunicator, layout: Layout, algorithms: Mapping[str, str]
) -> OpenCommunicator:
    """The simplest communicator of flat's ranks, of which this host's are in `local`. Collective; owns both.

    algorithms: to force if it is a HierarchicalCommunicator.
    """
    return _assembled(flat, local, _lane(flat, layout), layout, algorithms)


def _lane(flat: OpenCommunicator, layout: Layout) -> OpenCommunicator | None:
    """This rank's lane, or None if it is in none. Collective if the group spans hosts, some with several ranks."""
    if layout.hosts in (1, flat.world_size):
        return None
    number = layout.local(flat.rank)
    return flat.split(number if number < layout.lanes else -1, layout.host[flat.rank])


def _assembled(
    flat: OpenCommunicator,
    local: OpenCommunicator,
    lane: OpenCommunicator | None,
    layout: Layout,
    algorithms: Mapping[str, str],
) -> OpenCommunicator:
    if layout.hosts == 1:
        flat.close()
        return local
    if layout.hosts == flat.world_size:
        local.close()
        return flat
    comm = HierarchicalCommunicator(flat, local, lane, layout)
    comm.force(algorithms)
    return comm


class HierarchicalCommunicator(ComposedCommunicator):
    """One rank's communicator in a group that spans hosts, some of which have several ranks.

    flat, local, lane: see the module; lane is None if this rank is in none. Owns all three.
    """

    backend = "hierarchical"
    _channel: Channel

    def __init__(
        self, flat: OpenCommunicator, local: OpenCommunicator, lane: OpenCommunicator | None, layout: Layout
    ) -> None:
        self._flat, self._local, self._lane = flat, local, lane
        self.layout = layout
        """Which rank is on which host."""
        self._here = layout.host[flat.rank]
        self._members = layout.members[self._here]
        self._number = local.rank  # among the members, and of the lane if this rank is in one
        self._carrier = HostStream.create()  # serves the lane meanwhile
        self._kept: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        for part in self._parts():
            part.become_part()
        self._within = InnerGroup(local, self._members, self._explained)
        self._across = InnerGroup(flat, range(flat.world_size), self._explained)
        self._own_lane: Collectives = NoInnerGroup()
        if lane is not None:
            self._own_lane = InnerGroup(lane, [members[self._number] for members in layout.members], self._explained)
        self.any_source = local.any_source and flat.any_source
        bind(self, local, "allocate", "allocating")
        self._channel = Channel(self._within, self._across, layout, self._message_failed)
        super().__init__(flat.rank, flat.world_size, local.timeout, checks=True)

    def _timeout_set(self, timeout: float) -> None:
        for part in self._parts():
            part.timeout = timeout

    def words(self, number: int) -> SharedIntegers | None:
        words = self._across.do("words", self._flat.words, number)
        return None if words is None else InnerIntegers(self._across, words)

    # ---- point-to-point ----

    def left(self) -> Collection[int]:
        local_ranks = {self._members[number] for number in self._local.left()}
        return local_ranks.union(set(self._flat.left()).difference(self._members))

    def sync(self) -> None:
        self._drain()
        self._check_usable()
        self._channel.sync()

    # ---- moves ----

    def _barrier(self) -> None:
        self._within.run(Call(BARRIER))
        self._between(0).run(Call(BARRIER))
        self._within.run(Call(BARRIER))

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        """The root's host scatters over the lanes, each lane broadcasts its share, every host gathers the shares."""
        shares, host = self._shares(size, size), self.layout.host[root]
        share, length = self._memory("share", shares[self._number]), shares[self._number]
        if host == self._here:
            self._within.scatter_v(ptr, share, shares, _BYTE, self.layout.local(root))
        self._between(length).broadcast(share, length, _BYTE, host)
        self._within.all_gather_v(share, ptr, shares, _BYTE)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        """Each host gathers its blob; the lanes exchange slices of the blobs; each host gathers all slices."""
        slices = self._slices(sizes, sum(sizes))
        host_sizes = slices[self._here]
        blob = self._memory("blob", sum(host_sizes))
        self._within.all_gather_v(send, blob, [sizes[rank] for rank in self._members], _BYTE)
        shares = self._shares_of(slices)
        share = self._memory("share", shares[self._number])
        own_slice = blob + sum(host_sizes[: self._number])
        self._between(shares[self._number]).all_gather_v(own_slice, share, self._column(slices), _BYTE)
        carried = self._memory("carried", sum(sizes))
        self._within.all_gather_v(share, carried, shares, _BYTE)
        for at, to, length in self.layout.arrangement(sizes, slices):
            ctypes.memmove(recv + at, carried + to, length)

    def _all_to_all(self, send: int, recv: int, size: int) -> None:
        layout = self.layout
        even = layout.lanes * layout.hosts == self._world_size
        chosen = tuning.all_to_all_of_hosts(layout.hosts, layout.lanes, size) if even else "direct"
        if not size or self._algorithm("all_to_all", chosen) != "one_lane":
            super()._all_to_all(send, recv, size)
            return
        if not even:
            why = "it needs equally many ranks on every host"
            raise tuning.cannot_run(self.backend, "all_to_all", "one_lane", why)
        one_lane.all_to_all(layout, self._number, (send, recv), size, self._within, self._between(0))

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        """Blocks for this host's members go through shared memory, the others directly to their ranks."""
        outgoing = self._memory("outgoing", sum(send_sizes))
        incoming = self._memory("incoming", sum(recv_sizes))
        for at, to, length in self._members_first(send_sizes):
            ctypes.memmove(outgoing + to, send + at, length)
        local_sizes = [[amounts[rank] for rank in self._members] for amounts in (send_sizes, recv_sizes)]
        self._within.all_to_all_v(outgoing, incoming, local_sizes[0], local_sizes[1], _BYTE)
        remote_sizes = [
            [0 if self.layout.host[rank] == self._here else amount for rank, amount in enumerate(amounts)]
            for amounts in (send_sizes, recv_sizes)
        ]
        self._across.all_to_all_v(
            outgoing + sum(local_sizes[0]), incoming + sum(local_sizes[1]), remote_sizes[0], remote_sizes[1], _BYTE
        )
        for at, to, length in self._members_first(recv_sizes):
            ctypes.memmove(recv + at, incoming + to, length)

    # ---- reductions ----

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        """In pieces if it is large: while the lanes carry one, the members reduce the next and gather the previous."""
        size = ITEMSIZE[dtype]
        step = tuning.pipeline_step(self.layout.lanes, self.layout.hosts) // size
        match self._forced.get("all_reduce"):
            case "one_lane" | "all_lanes":
                step = count
            case "pipelined":
                step = min(step, max(1, (count + 1) // 2))  # two pieces at least
        step = max(step, 1)
        starts = range(0, max(count, 1), step)
        now = len(starts) == 1
        before: tuple[int, Carried] | None = None
        for number, start in enumerate(starts):
            piece = ptr + start * size
            carried = self._all_reduce_piece(piece, min(step, count - start), dtype, op, number % 2, now)
            if before is not None:
                self._gather_piece(*before, dtype)
            before = piece, carried
        assert before is not None
        self._gather_piece(*before, dtype)

    def _all_reduce_piece(self, ptr: int, count: int, dtype: DType, op: ReduceOp, slot: int, now: bool) -> Carried:
        """Reduce within the hosts and, now or in the carrier's thread, between them. slot: which memory it uses."""
        whole = count * ITEMSIZE[dtype]
        shares = self._shares(count, whole)
        pieces = divided(shares[self._number], self.layout.hosts)
        share = self._memory(f"share {slot}", shares[self._number] * ITEMSIZE[dtype])
        reduced = self._reduce_within(ptr, count, shares, dtype, op, slot)
        if now and self._in_one_lane(whole):
            reduction = Partial(dtype, op, self._world_size)
            self._between(sum(pieces)).all_reduce(reduced, sum(pieces), reduction.kind, reduction.step)
            reduction.end(share, reduced, sum(pieces))
            return share, shares, None

        def carry() -> None:
            piece = self._reduce_between(reduced, pieces, dtype, op, slot)
            self._between(sum(pieces)).all_gather_v(piece, share, pieces, dtype)

        if now:
            carry()
            return share, shares, None
        return share, shares, self._carrier.submit(carry)

    def _gather_piece(self, ptr: int, carried: Carried, dtype: DType) -> None:
        share, shares, work = carried
        if work is not None:
            work.wait()
        self._within.all_gather_v(share, ptr, shares, dtype)

    def _reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        whole, host = count * ITEMSIZE[dtype], self.layout.host[root]
        shares = self._shares(count, whole)
        length = shares[self._number]
        share = self._memory("share", length * ITEMSIZE[dtype])
        reduced = self._reduce_within(ptr, count, shares, dtype, op)
        if self._in_one_lane(whole):
            reduction = Partial(dtype, op, self._world_size)
            self._between(length).reduce(reduced, length, reduction.kind, reduction.step, host)
            if host == self._here:
                reduction.end(share, reduced, length)
        else:
            pieces = divided(length, self.layout.hosts)
            piece = self._reduce_between(reduced, pieces, dtype, op)
            self._between(length).gather_v(piece, share, pieces, dtype, host)
        if host == self._here:
            self._within.gather_v(share, ptr, shares, dtype, self.layout.local(root))

    def _reduce_scatter_v(self, send: int, recv: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        """_all_gather_v in reverse, with reductions."""
        size = ITEMSIZE[dtype]
        slices = self._slices(counts, sum(counts) * size)
        carried = self._memory("carried", sum(counts) * size)
        for at, to, length in self.layout.arrangement(counts, slices):
            ctypes.memmove(carried + to * size, send + at * size, length * size)
        reduced = self._reduce_within(carried, sum(counts), self._shares_of(slices), dtype, op)
        piece = self._reduce_between(reduced, self._column(slices), dtype, op)
        host_counts = slices[self._here]
        blob = self._memory("blob", sum(host_counts) * size)
        self._within.all_gather_v(piece, blob, self._padded(host_counts), dtype)
        before = sum(counts[rank] for rank in self._members[: self._number])
        ctypes.memmove(recv, blob + before * size, counts[self._rank] * size)

    def _reduce_within(self, ptr: int, count: int, shares: list[int], dtype: DType, op: ReduceOp, slot: int = 0) -> int:
        """Reduce `count` elements within this host. Returns the address of this rank's share, in the dtype sent."""
        kind = carried_as(dtype, op)
        if kind is not dtype:
            wide = self._memory("wide", count * ITEMSIZE[kind])
            _native.widen_local(wide, ptr, count, dtype)
            ptr = wide
        reduced = self._memory(f"reduced {slot}", shares[self._number] * ITEMSIZE[kind])
        self._within.reduce_scatter_v(ptr, reduced, shares, kind, ReduceOp.SUM if op is ReduceOp.MEAN else op)
        return reduced

    def _reduce_between(self, reduced: int, pieces: Sequence[int], dtype: DType, op: ReduceOp, slot: int = 0) -> int:
        """Reduce this lane's share between hosts, one piece per host. Returns the address of this host's piece.

        pieces: the lengths of all hosts' pieces; zeros if this rank is in no lane.
        """
        kind, hosts, own_piece = carried_as(dtype, op), self.layout.hosts, pieces[self._here]
        size = ITEMSIZE[kind]
        incoming = self._memory(f"incoming {slot}", own_piece * hosts * size)
        self._between(sum(pieces)).all_to_all_v(reduced, incoming, pieces, [own_piece] * hosts, kind)
        piece = self._memory(f"piece {slot}", own_piece * size)
        if not own_piece:
            return piece
        _native.reduce_local(
            piece, [incoming + host * own_piece * size for host in range(hosts)], own_piece, kind, op, self._world_size
        )
        if kind is not dtype:
            _native.narrow_local(incoming, piece, own_piece, dtype)
            return incoming
        return piece

    def _in_one_lane(self, whole: int) -> bool:
        """Whether one lane carries all data. whole: the total bytes between the hosts."""
        return self._algorithm(self._last_call.operation.name, tuning.lanes(whole)) == "one_lane"

    # ---- how data is divided ----

    def _lanes(self, amount: int, whole: int) -> list[int]:
        """How much of `amount` each lane carries; whole: the total bytes, which decide how many lanes are used."""
        lanes = self.layout.lanes
        if self._in_one_lane(whole):
            return [amount] + [0] * (lanes - 1)
        return list(divided(amount, lanes))

    def _shares(self, amount: int, whole: int) -> list[int]:
        """How much of all ranks' data each member carries."""
        return self._padded(self._lanes(amount, whole))

    def _slices(self, amounts: Sequence[int], whole: int) -> list[list[int]]:
        """[host][lane]: how much of each host's blob each lane carries."""
        return [self._lanes(blob, whole) for blob in self.layout.blobs(amounts)]

    def _shares_of(self, slices: list[list[int]]) -> list[int]:
        """How much of all blobs each member carries."""
        return self._padded([sum(lane) for lane in zip(*slices, strict=True)])

    def _column(self, slices: list[list[int]]) -> list[int]:
        """This lane's slice of each host's blob."""
        return [self._padded(by_lane)[self._number] for by_lane in slices]

    def _padded(self, by_lane: list[int]) -> list[int]:
        """One number per member: 0 for members in no lane."""
        return by_lane + [0] * (len(self._members) - len(by_lane))

    def _members_first(self, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """`moves` to an order in which this host's members come first, then the others by rank."""
        others = [rank for rank in range(self._world_size) if self.layout.host[rank] != self._here]
        return moves(sizes, [*self._members, *others])

    def _memory(self, name: str, size: int) -> int:
        """The address of the memory with this name, which is kept from call to call so that its pages stay mapped."""
        memory = self._kept.get(name)
        if memory is None or memory.nbytes < size:
            memory = self._kept[name] = np.empty(max(size, 64), np.uint8)
        return address(memory)

    # ---- the parts ----

    def _parts(self) -> list[OpenCommunicator]:
        return [self._local, self._flat] if self._lane is None else [self._local, self._lane, self._flat]

    def _between(self, carried: int) -> Collectives:
        """This rank's lane, which carries `carried`. The first lane takes part even if that is 0."""
        return self._own_lane if carried or self._number == 0 else NoInnerGroup()

    def _explained(self, error: RankwiseError, part: InnerGroup, message: str) -> RankwiseError:
        """The group's error for an error of one of its parts: in this rank's collective, or in this other operation.

        An error in another operation fails the group if it has failed the part.
        """
        if message:
            explained = of_the_group(error, part.ranks, message)
            if isinstance(explained, PeerLostError) or part.comm.has_failed():
                self._fail(explained)
            return explained
        call, sequence = self._last_call, self._sequence
        explained = of_the_group(error, part.ranks, call.operation.name, sequence)
        if isinstance(explained, CollectiveTimeout):
            explained = latest(explained, self._flat.explain_timeout(str(call), sequence))
        return explained

    # ---- going on after a loss ----

    def failed(self) -> dict[int, str]:
        lost = self._flat.failed()
        return lost | {self._members[number]: how for number, how in self._local.failed().items()}

    def agree(self, flag: int) -> int:
        self._drain()
        return self._flat.agree(flag)

    def shrink(self, exclude: Sequence[int] = ()) -> OpenCommunicator:
        """Every part shrinks. If a rank dies meanwhile, which only some may notice, all survivors do it again."""
        self._drain()
        excluded = [self._members.index(rank) for rank in exclude if rank in self._members]
        for (flat, local), former in shrunk([self._flat, self._local], [exclude, excluded]):
            hosts = [self.layout.host[rank] for rank in former]
            layout, lane = Layout.of(hosts), None
            if not flat.agree(int(hosts.count(self._here) == local.world_size)):
                continue  # a rank is in one part only
            try:
                lane = _lane(flat, layout)
                made = 1
            except RankwiseError:
                made = 0
            if flat.agree(made):
                new = _assembled(flat, local, lane, layout, self._forced)
                new.former_ranks = former
                return new
            if lane is not None:
                lane.close(0.0)
        raise AssertionError  # shrunk ends with an error

    # ---- what ComposedCommunicator needs ----

    def _collect(self, own: int, everybody: int, size: int) -> None:
        """Gather at the first member of each host, exchange among these, and broadcast within each host."""
        whole, sizes = size * self._world_size, [size] * self._world_size
        blobs = self.layout.blobs(sizes)
        blob, by_host = self._memory("blob", blobs[self._here]), self._memory("carried", whole)
        self._within.gather(own, blob, size, _BYTE, 0)
        if self._number == 0:
            self._between(0).all_gather_v(blob, by_host, blobs, _BYTE)
        self._within.broadcast(by_host, whole, _BYTE, 0)
        for at, to, length in moves(sizes, [rank for members in self.layout.members for rank in members]):
            ctypes.memmove(everybody + at, by_host + to, length)

    def _part(self, color: int, members: Sequence[int]) -> OpenCommunicator:
        key = members.index(self._rank)
        flat, local = self._flat.split(color, key), self._local.split(color, key)
        assert flat is not None
        assert local is not None
        part = assemble(flat, local, Layout.of([self.layout.host[rank] for rank in members]), self._forced)
        part.former_ranks = tuple(members)  # one of a single host's ranks is of that host's communicator
        return part

    def _no_part(self) -> None:
        self._flat.split(-1)
        self._local.split(-1)

    def _announce_failure(self, error: RankwiseError, *, known_to_all: bool) -> None:
        """Wake this host's members, and the hosts that this rank is connected to, if they are waiting."""
        self._channel.fail(error)
        if known_to_all:
            return
        failure = error.failure
        if failure.kind == ERROR:
            failure = Failure(LOST, str(error), to_blame=(self._rank,), how=f"aborted the group: {error}")
        for part in self._parts():
            part.fail_as_part(failure)

    def _release(self, timeout: float, healthy: bool) -> None:
        end = time.monotonic() + timeout
        self._carrier.close(0)
        self._channel.close()
        for part in self._parts():
            part.close(max(0.0, end - time.monotonic()))
