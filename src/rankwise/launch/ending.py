"""How a job ended, on one node or on all: its exit code, and the sentence that is the launcher's last line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwise.system.texts import signal_name

MOST = 100  # losses that the last line describes


class Ending:
    """How a job, or the part of it on one node, ended. It is sent from node to node as `vars(ending)`.

    ranks: how many ranks it had. survivors: how many of them still ran when it began to end. interrupted: the signal
    that stopped it, or None. reason: what the rank to blame did, or "" if no rank failed. code: the exit code. lost:
    whether the rank to blame failed only because another one was lost. hang: whether `reason` describes a timeout.
    without: descriptions of the lost ranks without which the others went on. again: the ranks that were started again,
    in words, or "".
    """

    def __init__(
        self,
        *,
        ranks: int,
        survivors: int = 0,
        interrupted: int | None = None,
        reason: str = "",
        code: int = 0,
        failed_by_loss: bool = False,
        hang: bool = False,
        without: Sequence[str] = (),
        again: str = "",
    ) -> None:
        self.ranks = ranks
        self.survivors = survivors
        self.interrupted = interrupted
        self.reason = reason
        self.code = code
        self.failed_by_loss = failed_by_loss
        self.hang = hang
        self.without = list(without)
        self.again = again

    @classmethod
    def of_all(cls, endings: Mapping[int, Ending], first: int, interrupted: int | None) -> Ending:
        """The ending of the whole job, combined from the endings of its nodes.

        first: the key of the ending that ended the job. It is blamed, unless its rank failed only because another one
        was lost.
        """

        def blame(node: int) -> tuple[bool, bool, bool, int]:
            return not endings[node].reason, endings[node].failed_by_loss, node != first, node

        blamed = endings[min(endings, key=blame)]
        return cls(
            ranks=sum(ending.ranks for ending in endings.values()),
            survivors=sum(ending.survivors for ending in endings.values()),
            interrupted=interrupted,
            reason=blamed.reason,
            code=blamed.code if interrupted is None else 128 + interrupted,
            failed_by_loss=blamed.failed_by_loss,
            hang=blamed.hang,
            without=shortened([each for _, ending in sorted(endings.items()) for each in ending.without]),
        )

    @property
    def failed(self) -> bool:
        """Whether a rank's failure ended the job."""
        return bool(self.reason) and self.interrupted is None

    @property
    def stopped(self) -> str:
        """ "stopped by SIGTERM", or "" if no signal stopped it."""
        return "" if self.interrupted is None else f"stopped by {signal_name(self.interrupted)}"

    @property
    def line(self) -> str:
        """The launcher's last line; "" if there is nothing to say."""
        if self.stopped:
            return f"{self.stopped}; {_ranks(self.survivors)} ended"
        if not self.reason:
            without = f"finished without {'; '.join(self.without)}" if self.without else "finished" * bool(self.again)
            return f"{without}; started again: {self.again}" if self.again else without
        if self.hang:
            return f"{self.reason}; all {self.ranks} ranks were ended"
        if not self.survivors:
            return self.reason
        return f"{self.reason}; {_ranks(self.survivors, all_others=self.survivors == self.ranks - 1)} ended"


def shortened(losses: Sequence[str]) -> list[str]:
    """The first MOST descriptions of losses, and how many more there are."""
    return [*losses[:MOST], *([f"{len(losses) - MOST} more"] if len(losses) > MOST else [])]


def _ranks(count: int, all_others: bool = False) -> str:
    words = "1 rank was" if count == 1 else f"{count} ranks were"
    return f"the other {words.removeprefix('1 ')}" if all_others else words
