"""A task farm: tasks dealt to the ranks as these become free, with one rank that collects the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, starmap
from typing import Any, TypeAlias

from rankwise.contract.errors import PeerLostError, RankwiseError, UnsupportedError, traceback_text
from rankwise.contract.message import ANY
from rankwise.contract.public import public
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.timeouts import LONGEST_TIMEOUT
from rankwise.contract.work import Work
from rankwise.group.base import GroupBase, each_of, of_kind
from rankwise.group.messages import Messages
from rankwise.group.object_block import Codec, Parts, aligned, assemble, length_of
from rankwise.group.objects import ObjectCollectives
from rankwise.group.p2p import PointToPoint
from rankwise.group.sharing import Sharing, shared_words


@public
class TaskError(RankwiseError):
    """A task of `group.map` or `group.imap` raised an error, or ended the processes of the ranks that did it.

    The message ends with the traceback on its rank.

    Attributes:
        task: the task's number, its index in `tasks`.
        rank: the rank on which it ran last.

    Example:
        >>> try:
        ...     group.map(lambda x: 1 // x, [1, 0])
        ... except rw.TaskError as error:
        ...     print(error.task, str(error).splitlines()[-1])
        ... else:
        ...     print("1 ZeroDivisionError: integer division or modulo by zero")
        1 ZeroDivisionError: integer division or modulo by zero
    """

    def __init__(self, text: str, task: int, rank: int) -> None:
        super().__init__(text)
        self.task, self.rank = task, rank


_Outcome: TypeAlias = "tuple[Any, str | None, int]"
"""What became of a task: its result, or else what went wrong, in words, and the rank."""


class _Team(ObjectCollectives, Sharing, PointToPoint, Messages):
    """The ranks that work, in a group of their own, so that their messages match no others."""

    def close(self) -> None:
        self.pending.before_close()
        self._close_hosts()
        self.comm.close()
        self.pending.close()


_OUTCOME = 1  # the tag of outcomes
_NEXT, _LATEST = 0, 1  # words that the ranks share: the next task, and for each rank 1 + its latest one


class _Farm:
    """One rank's part of one call of map.

    It goes in rounds: dst says which tasks are to be done, or that none is; the ranks take them in turn from a counter,
    and send dst the outcomes; each says when it finds no more. If a rank is lost, the others begin another round with
    the tasks whose outcomes are lost. The task that it was at is tried once more, when all others are done, and not on
    dst, whose loss would end everything.

    fn, dst: as in `map`. codec: of tasks and results. parts: on dst, the encoded tasks. members: the rank in the group
    of each of the team.
    """

    def __init__(
        self, fn: Callable[[Any], Any], parts: list[Parts], dst: int, codec: Codec, team: _Team, members: list[int]
    ) -> None:
        self._fn, self._parts, self._dst, self._codec = fn, parts, dst, codec
        self._team, self._members = team, members
        self._rank = members[team.rank]
        self._outcomes: dict[int, _Outcome] = {}  # by task: on dst all that are known, elsewhere this rank's own
        self._words: SharedIntegers | None = None  # of the present round
        self._ended: dict[int, list[tuple[int, str]]] = {}  # on dst, by task: which ranks were lost at it, and how
        self._dealing_only = False  # dst takes no task in this round
        self._tasks: list[tuple[int, Any]] = []  # of the present round: their numbers, and their blocks
        self._helping = 0  # how many of the other ranks still take tasks
        self._limit = team.comm.timeout
        self._wait_for_tasks()

    def help(self) -> None:
        """On the ranks other than dst: work until all tasks are done."""
        try:
            while self._unless_lost(self._help_once):
                pass
        finally:
            self._team.close()

    def collect(self) -> Iterator[_Outcome]:
        """On dst: work, and yield the outcomes in order; but first one of no task, so that it can always be closed."""
        shown = 0
        try:
            yield None, None, self._dst
            more = True
            while more:
                more = self._unless_lost(self._collect_once)
                while shown in self._outcomes:
                    yield self._outcomes[shown]
                    shown += 1
        except GeneratorExit:
            self._parts = []  # no further round
            if self._words is not None:
                self._words.add(_NEXT, len(self._tasks))  # the others find no more
            while self._unless_lost(self._collect_once):
                pass
            raise
        finally:
            self._team.close()

    def _help_once(self) -> bool:
        """One round. Returns False if there is nothing to do."""
        self._begin([])
        if self._words is None:
            return False
        sending = [self._send((number, self._outcomes[number])) for number in self._rest()]
        sending.append(self._send(None))
        for work in sending:
            work.wait()
        return True

    def _collect_once(self) -> bool:
        """One step: the beginning or the end of a round, the outcome of another rank, or a task. False: all is done."""
        if self._words is None:
            self._begin(self._next_round())
            return self._words is not None
        if self._helping and self._team.probe(ANY, _OUTCOME) is not None:
            self._receive()
        elif not self._dealing_only and next(self._rest(), None) is not None:
            pass
        elif self._helping:
            self._receive()
        else:
            self._words = None
        return True

    def _next_round(self) -> list[int]:
        """The tasks of the next round: those at which a rank was lost come last, and are given up after two."""
        for number, ends in self._ended.items():
            if len(ends) > 1 or self._team.world_size == 1:
                ranks = ", ".join(f"rank {rank} {how}" for rank, how in ends)
                given_up = (None, f"ended the process of each rank that did it: {ranks}", ends[-1][0])
                self._outcomes.setdefault(number, given_up)
        left = [number for number in range(len(self._parts)) if number not in self._outcomes]
        harmless = [number for number in left if number not in self._ended]
        self._dealing_only = not harmless
        return harmless or left

    @property
    def _root(self) -> int:
        return self._members.index(self._dst)

    def _begin(self, numbers: Sequence[int]) -> None:
        """Begin a round with these tasks of dst's, if there are any."""
        plan = self._team.broadcast_object([(number, length_of(self._parts[number])) for number in numbers], self._root)
        self._words = None
        if plan:
            shared = self._team.share(assemble(*(self._parts[number] for number in numbers)), self._root)
            starts = accumulate((aligned(size) for _, size in plan), initial=0)
            self._tasks = [(number, shared[at : at + size]) for (number, size), at in zip(plan, starts, strict=False)]
            self._words = shared_words(self._team, _LATEST + self._team.world_size, "map")
            self._helping = self._team.world_size - 1

    def _rest(self) -> Iterator[int]:
        """Take tasks until none is left, and yield the number of each when it is done."""
        words, own_word = self._words, _LATEST + self._team.rank
        assert words is not None
        while (at := words.add(_NEXT, 1)) < len(self._tasks):
            words.add(own_word, 1 + at - words.add(own_word, 0))
            number, block = self._tasks[at]
            try:
                value = self._fn(self._codec.read(block, self._dst))
                self._codec.encode(value)  # raises if it cannot be sent
                self._outcomes[number] = (value, None, self._rank)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a task raises is its outcome
                text = f"raised an error on rank {self._rank}:\n{traceback_text(error, error.__traceback__)}"
                self._outcomes[number] = (None, text, self._rank)
            yield number

    def _send(self, message: tuple[Any, ...] | None) -> Work[None]:
        return self._team.isend_object(message, self._root, _OUTCOME, allow_pickle=self._codec.trusted)

    def _receive(self) -> None:
        """Receive an outcome of another rank, or that it finds no more tasks."""
        message = self._team.recv_any(tag=_OUTCOME, allow_pickle=self._codec.trusted).data
        if message is None:
            self._helping -= 1
        else:
            number, outcome = message
            self._outcomes[number] = outcome

    def _unless_lost(self, step: Callable[[], bool]) -> bool:
        """Take a step; if a rank is lost, go on without it, and return True."""
        try:
            return step()
        except PeerLostError as lost:
            self._go_on(lost)
            return True

    def _wait_for_tasks(self) -> None:
        """A task may take as long as it likes: only a loss ends a wait, such as a host's that is silent too long."""
        self._team.comm.timeout = self._limit  # gloo keeps it as its patience while the timeout is the longest one
        self._team.comm.timeout = LONGEST_TIMEOUT

    def _go_on(self, lost: PeerLostError) -> None:
        """Begin again with the ranks that live, of which dst gets the outcomes that it may not have received."""
        if lost.rank == self._team.rank:
            raise lost
        try:
            comm = self._team.comm.shrink()
        except UnsupportedError:
            raise lost from None
        former = comm.former_ranks
        assert former is not None
        self._note_lost(set(range(len(self._members))).difference(former))
        self._team.close()
        self._team, self._members = _Team(comm, self._team.name), [self._members[rank] for rank in former]
        self._wait_for_tasks()
        self._words = None
        if self._dst not in self._members:
            raise lost
        self._unless_lost(self._gather_outcomes)

    def _gather_outcomes(self) -> bool:
        own = {} if self._rank == self._dst else self._outcomes
        for outcomes in self._team.gather_object(own, self._root, allow_pickle=self._codec.trusted) or ():
            self._outcomes.update(outcomes)
        return True

    def _note_lost(self, lost: Iterable[int]) -> None:
        """On dst: the latest tasks of these ranks of the team."""
        if self._words is None or self._rank != self._dst:
            return
        with suppress(RankwiseError):  # the backend may not say; then nobody is to blame
            how = self._team.comm.failed()
            for rank in lost:
                if latest := self._words.add(_LATEST + rank, 0):
                    ends = self._ended.setdefault(self._tasks[latest - 1][0], [])
                    ends.append((self._members[rank], how.get(rank, "was lost")))


class Farming(GroupBase):
    """Operations that run functions on the ranks."""

    def map(
        self,
        fn: Callable[[Any], Any],
        tasks: Iterable[Any] | None = None,
        dst: int = 0,
        *,
        allow_pickle: bool | None = None,
    ) -> list[Any] | None:
        """Call fn(task) for each task, on whichever rank is free, and return the results on rank `dst`.

        Collective: every rank calls it and works, dst too. A rank takes its next task when it has finished one. A rank
        that dies loses only the task that it was doing, which another rank does again, once. The group itself has then
        failed, as after any loss, and may be shrunk.

        Args:
            fn: the function, on every rank. It may not call operations of this group.
            tasks: plain data, as in `broadcast_object`, or with allow_pickle any objects; ignored on ranks other
                than `dst`. fn cannot write to the arrays in them.
            allow_pickle: as in `broadcast_object`, for tasks and results.

        Returns:
            The results in the order of the tasks, on rank `dst`; None elsewhere.

        Raises:
            TaskError: on rank `dst`, when all tasks are done: the error of the first task that raised one, or ended the
                process of each rank that did it.
            PeerLostError: rank `dst` was lost, or another rank was and the backend cannot go on after a loss.

        Example:
            >>> group.map(lambda x: x * x, range(5) if group.rank == 0 else None) == (
            ...     [0, 1, 4, 9, 16] if group.rank == 0 else None
            ... )
            True
        """
        outcomes = list(self._outcomes(fn, tasks, dst, self._codec(allow_pickle)))
        return list(starmap(_result, enumerate(outcomes))) if self.rank == dst else None

    def imap(
        self,
        fn: Callable[[Any], Any],
        tasks: Iterable[Any] | None = None,
        dst: int = 0,
        *,
        allow_pickle: bool | None = None,
    ) -> Iterator[Any]:
        """As `map`, but return an iterator on rank `dst`, which yields the results in the order of the tasks.

        While rank `dst` waits for the next result, it does tasks itself, so a result may have to wait until the task
        that `dst` is doing is finished. On the other ranks the call returns an empty iterator, but only when `dst`
        has taken all results. If the iterator is dropped, the tasks that nobody has begun are not done.

        Raises:
            TaskError: when the iterator reaches that task; it may then be continued.

        Example:
            >>> for size in group.imap(abs, [-1, 4, -9] if group.rank == 0 else None):
            ...     assert size in (1, 4, 9)
        """
        return starmap(_result, enumerate(self._outcomes(fn, tasks, dst, self._codec(allow_pickle))))

    def _outcomes(
        self, fn: Callable[[Any], Any], tasks: Iterable[Any] | None, dst: int, codec: Codec
    ) -> Iterator[_Outcome]:
        """On dst the tasks' outcomes in order; nothing elsewhere, after all tasks have been done."""
        dst = self._rank(dst, "dst")
        of_kind(fn, "fn", Callable, "a function of one argument")
        parts: list[Parts] = []
        if self.rank == dst:
            given = each_of(tasks, "tasks", "the tasks, on rank dst")  # type: ignore[arg-type]  # None is refused
            parts = [codec.encode(task) for task in given]
        comm = self.comm.split(0, self.rank)
        assert comm is not None
        team = _Team(comm, f"{self.name}.map")
        work = _Farm(fn, parts, dst, codec, team, list(range(self.world_size)))
        if self.rank == dst:
            outcomes = work.collect()
            next(outcomes)
            return outcomes
        work.help()
        return iter(())


def _result(task: int, outcome: _Outcome) -> Any:
    """The task's result; TaskError if it raised an error."""
    value, error, rank = outcome
    if error is None:
        return value
    raise TaskError(f"task {task} {error}", task, rank)
