"""The launchers of a job on several nodes: what they report to each other until the job has ended.

A *node* is a launcher with its ranks, usually one per host. All other launchers are connected to node 0's as long as
the job runs: when one node begins to end its ranks, all do, and node 0 combines the endings of all nodes into one, and
their traces into one file. The loss of a launcher ends the job, unless the job goes on after losses and the launcher is
not node 0's. `node_meeting` describes how the launchers meet.

Every message is a line of JSON, an object with these keys:
    node -> node 0   lost: the fields of `Loss`, for a lost rank of a job that goes on after losses
    both ways        end: the signal that stopped the job, 0 for a failure
    node -> node 0   report: the node's Ending, once its ranks have ended
    node 0 -> node   outcome: the job's Ending; collect: whether node 0 writes the trace of all nodes. If it does:
    both ways        clock: a node sends its own time, and node 0 answers with this time and node 0's, in ns
    node -> node 0   trace: a piece of the node's trace
                     traced: the offset of the node's clock, and its error; the trace is complete
"""

from __future__ import annotations

import base64
import selectors
import socket
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.contract.closing import Closeable
from rankwise.launch.ending import Ending, shortened
from rankwise.launch.losses import too_few
from rankwise.meeting.connection import PATIENCE, Connection

SAMPLES = 8
LONGEST_REASON = 2000  # characters
PIECE = 1 << 17  # characters of a trace in a message
COLLECTING = 60.0  # seconds for which node 0 waits for the next piece of a trace, and a node for an answer
JOB = -1  # as the number of a node: the job as a whole

Address = tuple[str, int]


@dataclass
class Loss:
    """A loss on a node. end: a sentence about it. code: the exit code if it ends the job. ranks: how many were lost."""

    node: int
    end: str
    code: int
    ranks: int = 1


@dataclass
class NodeTrace:
    """The trace of another node, as far as node 0 has received it.

    offset: what must be added to its times to get node 0's, in ns. within: how far this may be off.
    """

    offset: int = 0
    within: int = 0
    complete: bool = False
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The trace, once it is complete."""
        return zlib.decompress(base64.b64decode("".join(self.pieces))).decode()


def clock_sample(asked: int, other_clock: int, answered: int) -> tuple[int, int]:
    """What must be added to this node's clock to get another one, as NTP estimates it (RFC 5905), in ns.

    asked, answered: times on this node's clock; other_clock: the time on the other clock at any moment in between.
    Returns how far off the estimate may be, and the estimate.
    """
    return (answered - asked + 1) // 2, other_clock - (asked + answered) // 2


class Nodes(Closeable):
    """This launcher's part in a job on several nodes, once all launchers have met. It owns the sockets.

    node: this node's number. sizes: how many ranks each node has. hosts: the names of the other nodes' hosts, as far as
    they are known. master: host and port at which rank 0 serves the ranks' store. port: on node 0, the socket that
    reserves this port. secret: the job's. connections: to node 0; on node 0, to every other node. min_ranks: how many
    ranks must be left for the job to go on after a loss, or None if every loss ends it. spans: whether the ranks record
    the spans of rankwise.trace.
    """

    def __init__(
        self,
        node: int,
        sizes: Sequence[int],
        hosts: Mapping[int, str],
        master: Address,
        secret: str,
        connections: Mapping[int, Connection],
        port: socket.socket | None = None,
        *,
        min_ranks: int | None = None,
        spans: bool = False,
    ) -> None:
        self.node = node
        self.sizes = list(sizes)
        self.first = sum(self.sizes[:node])
        """The number of this node's first rank."""
        self.world_size = sum(self.sizes)
        self.master = master
        self.secret = secret
        self.host = socket.gethostname()
        self.spans = spans
        self.ending: int | None = None
        """None while the job runs; then the signal that stopped it, or 0 for a failure."""
        self.outcome: Ending | None = None
        """How the job ended, on all nodes."""
        self.collects: Callable[[Ending], bool] = lambda ending: False
        """On node 0: whether node 0 writes the trace of all nodes, given the outcome."""
        self.collect = False
        """The result of `collects`, on all nodes, once there is an outcome."""
        self._hosts = {**hosts, node: self.host}
        self._connections = dict(connections)
        self._port = port
        self._min_ranks = min_ranks
        self._losses: list[Loss] = []  # on node 0, the losses of all nodes
        self._first = node  # the node that was the first to end its ranks, or JOB
        # The endings known here, by node: on node 0 all, on another node its own and, if node 0 was lost, node 0's.
        self._endings: dict[int, Ending] = {}
        self._traces: dict[int, NodeTrace] = defaultdict(NodeTrace)
        self._samples: list[tuple[int, int]] = []  # of node 0's clock

    def fds(self) -> list[int]:
        """The descriptors of the connections, for a selector; `receive` handles what arrives there."""
        return [connection.fileno() for connection in self._connections.values()]

    def host_of(self, node: int) -> str:
        """The name of a node's host, as far as it is known here, or ""."""
        return self._hosts.get(node, "")

    def receive(self, fd: int) -> bool:
        """Handle what has arrived at one of `fds`. Returns False if the connection has ended."""
        node, connection = next(each for each in self._connections.items() if each[1].fileno() == fd)
        message = connection.receive()
        if message is None:
            self._lose(node)
            return False
        if "end" in message:
            self._end(message["end"], node)
        elif "lost" in message:
            self._note_loss(Loss(**message["lost"]))
        elif "report" in message:
            self._note(node, Ending(**message["report"]))
        elif "outcome" in message:
            self.outcome, self.collect = Ending(**message["outcome"]), message["collect"]
        elif "clock" in message:
            self._compare_clocks(connection, message["clock"])
        elif "trace" in message:
            self._traces[node].pieces.append(message["trace"])
        elif "traced" in message:
            trace = self._traces[node]
            trace.offset, trace.within = message["traced"]
            trace.complete = True
        return True

    def end(self, signum: int) -> None:
        """Make all nodes end their ranks, as this one does. signum: the signal that caused it, or 0 for a failure."""
        self._end(signum, self.node)

    def lose(self, end: str, code: int) -> None:
        """Report that a rank of this node was lost. The others go on, unless too few are left on all nodes together."""
        loss = Loss(self.node, end, code)
        if self.node == 0:
            self._note_loss(loss)
        else:
            self._send(lost=vars(loss))

    def report(self, ending: Ending) -> None:
        """Report how the ranks of this node have ended. `outcome` is set once all nodes have reported."""
        ending.reason, ending.without = ending.reason[:LONGEST_REASON], shortened(ending.without)
        self._note(self.node, ending)
        if self.node != 0:
            self._send(report=vars(ending))

    def fail(self, why: str) -> None:
        """This launcher cannot go on: end the job on all nodes."""
        reason = f"node {self.node} ({self.host}) could not run its ranks: {why}"
        self.report(Ending(ranks=self.sizes[self.node], reason=reason, code=2))
        if self.node == 0 and self.outcome is None:
            self._send(outcome=vars(self._endings[0]), collect=False)

    def deliver(self, trace: str) -> bool:
        """Send the trace of this node to node 0. Returns False if node 0 is lost or does not answer."""
        if not all(self._ask_time() for _ in range(SAMPLES)):
            return False
        within, offset = min(self._samples)  # the shortest way to node 0 and back
        packed = base64.b64encode(zlib.compress(trace.encode(), 1)).decode()
        for start in range(0, len(packed), PIECE):
            self._send(trace=packed[start : start + PIECE])
        self._send(traced=[offset, within])
        return True

    def collected(self) -> dict[int, NodeTrace]:
        """On node 0: the traces of the other nodes, except lost nodes."""
        self._await(lambda: all(self._traces[node].complete for node in self._connections))
        return {node: trace for node, trace in sorted(self._traces.items()) if trace.complete}

    def close(self) -> None:
        """End the connections, once the other sides have read what was sent to them."""
        for connection in self._connections.values():
            connection.shut()
        end = time.monotonic() + PATIENCE
        for connection in self._connections.values():
            # Closing a socket with unread data would discard what the other side has not read yet.
            while time.monotonic() < end and connection.receive() is not None:
                pass
            connection.close()
        self._connections.clear()
        if self._port is not None:
            self._port.close()

    def _send(self, **message: object) -> None:
        for connection in self._connections.values():
            connection.send(**message)

    def _await(self, done: Callable[[], bool]) -> bool:
        """Handle what arrives until `done`. Returns False if all connections end first, or nothing comes in time."""
        with selectors.DefaultSelector() as selector:
            for fd in self.fds():
                selector.register(fd, selectors.EVENT_READ)
            while not done():
                ready = selector.select(COLLECTING) if self._connections else []
                if not ready:
                    return False
                for key, _ in ready:
                    if not self.receive(key.fd):
                        selector.unregister(key.fd)
        return True

    def _ask_time(self) -> bool:
        """Ask node 0 for its time; returns False if no answer comes."""
        before = len(self._samples)
        self._send(clock=[time.time_ns()])
        return self._await(lambda: len(self._samples) > before)

    def _compare_clocks(self, connection: Connection, times: list[int]) -> None:
        now = time.time_ns()
        if self.node == 0:
            connection.send(clock=[*times, now])
        else:
            asked, other_clock = times
            self._samples.append(clock_sample(asked, other_clock, now))

    def _end(self, signum: int, node: int) -> None:
        if self.ending is None:
            self._first = node
        elif self.ending or not signum:
            return  # known already
        self.ending = signum
        self._send(end=signum)

    def _note_loss(self, loss: Loss) -> None:
        assert self._min_ranks is not None
        self._losses.append(loss)
        left = self.world_size - sum(each.ranks for each in self._losses)
        if left < self._min_ranks and JOB not in self._endings:
            self._endings[JOB] = Ending(ranks=0, reason=loss.end + too_few(self._min_ranks), code=loss.code)
            self._end(0, JOB)

    def _lose(self, node: int) -> None:
        self._connections.pop(node).close()
        if node in self._endings or self.outcome is not None:
            return
        host = self.host_of(node)
        reason = f"the launcher of node {node}{f' ({host})' if host else ''} was lost"
        ranks = self.sizes[node] if self.node == 0 else self.world_size - self.sizes[self.node]
        ending = Ending(ranks=ranks, reason=reason, code=1)
        if self.node == 0 and self._min_ranks is not None and self.ending is None:
            lost_before = sum(loss.ranks for loss in self._losses if loss.node == node)
            self._note_loss(Loss(node, reason, 1, ranks - lost_before))
            ending = Ending(ranks=ranks, without=[f"node {node} ({host}), whose launcher was lost"])
        self._note(node, ending)

    def _note(self, node: int, ending: Ending) -> None:
        self._endings[node] = ending
        if ending.reason:
            self._end(0, node)
        if len(self._endings.keys() - {JOB}) == (len(self.sizes) if self.node == 0 else 2):
            self.outcome = Ending.of_all(self._endings, self._first, self.ending or None)
            if self.node == 0:
                self.collect = self.collects(self.outcome)
                self._send(outcome=vars(self.outcome), collect=self.collect)
