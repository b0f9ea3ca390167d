"""Going on after a loss: who is lost, what the survivors agree on, and the group in which they go on."""

from __future__ import annotations

from rankwise.group.base import GroupBase, integer_64


class Recovery(GroupBase):
    """Operations that work on a group that has failed, as they do on any other."""

    def failed(self) -> dict[int, str]:
        """The ranks of this group that are lost, as far as this rank knows, and how: {2: "was killed by SIGKILL"}.

        Lost are ranks whose process has ended, that have closed the group, or without which the others went on. A group
        that failed for another reason, such as a mismatch, has lost none. Not collective. ULFM splits this into
        MPIX_Comm_failure_ack and MPIX_Comm_failure_get_acked, for which there is no need here.

        Example:
            >>> lost = group.failed()
            >>> group.barrier()  # nobody closes the group before
            >>> lost
            {}
        """
        return self.comm.failed()

    def agree(self, flag: int) -> int:
        """The bitwise AND of the living ranks' flags, the same on each of them even if ranks die meanwhile.

        Collective over the ranks of this group that live, as ULFM's MPIX_Comm_agree: `if group.agree(done)` takes the
        same branch on all of them. It waits for every rank that is not lost, at most `group.timeout`; then the others
        go on without the ranks that are missing. (ULFM waits for ever, and reports failures that were not acknowledged;
        here the result says nothing about failures.)

        Args:
            flag: an int of at most 64 bits, or a bool.

        Raises:
            PeerLostError: with this rank's own number, if the others went on without it; it is lost to the group.

        Example:
            >>> group.agree(True), group.agree(6 if group.rank == 0 else 3)
            (1, 2)
        """
        return self.comm.agree(integer_64(flag, "flag"))

    def abort(self, reason: str) -> None:
        """Wake every rank of the group: its present or next operation raises PeerLostError with the reason.

        The error's `rank` is this rank, its `how` "aborted the group: " and the reason; this rank's own later
        operations raise it too. No process ends, and all ranks may go on by `shrink`. Not collective. It is ULFM's
        MPIX_Comm_revoke, with a reason; ncclCommAbort ends only the calling rank's part.

        Example:
            >>> with group.dup() as part:
            ...     part.abort("the loss is not a number")
            ...     try:
            ...         part.barrier()
            ...     except rw.PeerLostError as error:
            ...         print(error.how.endswith("aborted the group: the loss is not a number"))
            True
        """
        self.comm.abort(reason)
