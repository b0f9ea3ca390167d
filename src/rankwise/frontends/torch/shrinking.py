"""What torch.distributed.shrink_group asks of a backend: the ranks of a group agree to go on without some of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import distributed_c10d

from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import PeerLostError, UnsupportedError
from rankwise.contract.ranks import ranks_in_words
from rankwise.frontends.torch.core import Core
from rankwise.system.membership import LEFT_OUT, Membership
from rankwise.system.settings import Settings

MAKES_THE_GROUP = "_create_shrunk_process_group"
"""The function of torch's that makes the new group, which `opening` replaces for groups of rankwise."""


class Shrinking(Core):
    supports_shrinking = hasattr(distributed_c10d, MAKES_THE_GROUP)

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> Communicator:
        """A communicator of all ranks that are not excluded. All of them must live, and call this with the same ranks.

        If one of them is lost, every caller raises a PeerLostError that names it, and may call this again to exclude it
        too. shrink_flags: SHRINK_ABORT fails this group first, so that its pending operations end. opts_override: a
        Backend.Options, whose timeout the new communicator gets.
        """
        exclude = list(ranks_to_exclude)
        if shrink_flags & distributed_c10d.SHRINK_ABORT:
            with suppress(UnsupportedError):
                self.comm.abort(f"shrink_group({exclude}, shrink_flags=SHRINK_ABORT)")
        comm = self.comm.shrink(exclude)
        missing = sorted(set(range(self._size)).difference(exclude, comm.former_ranks or ()))
        if missing:
            comm.close()
            how = self.comm.failed().get(missing[0], "")
            text = f"shrink_group({exclude}): rank {missing[0]} {how}; exclude {ranks_in_words(missing)} as well"
            raise PeerLostError(text, rank=missing[0], how=how, operation="shrink")
        settings = Settings.read()
        if self._size == settings.world_size:  # so these are the job's ranks, with their numbers
            Membership.of(settings).note(exclude, LEFT_OUT)
        comm.timeout = self.comm.timeout if opts_override is None else opts_override._timeout.total_seconds()
        return comm
