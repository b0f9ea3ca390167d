"""The program of each rank process of hosts.py: a rank of `rankwise bench` whose calls begin at set times.

    python hosts_rank.py RANK_FILE LIBRARY SOCKET

RANK_FILE is rankwise's tools/bench/rank.py, which does the rest; it is run by its path, also in environments without
rankwise. The processes of all hosts share one clock, since the hosts are namespaces of one machine. So no barrier is
needed before a call; some ranks would return from it several latencies before others.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import socket
import sys
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.tools.bench import rank
else:
    spec = importlib.util.spec_from_file_location("rank", sys.argv[1])
    rank = sys.modules["rank"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rank)

BEGIN = monotonic()
PR_SET_TIMERSLACK = 29  # linux/prctl.h
STREAM_PORT = 29999


class HostServer(rank.RankServer):
    """Answers three more requests."""

    def __init__(self, library: rank.Library) -> None:
        super().__init__(library)
        self.opened = monotonic() - BEGIN

    def do_opening(self) -> dict[str, float]:
        """What meeting the other ranks took."""
        sockets = sum(
            os.path.realpath(f"/proc/self/fd/{fd}").find("socket:") >= 0 for fd in os.listdir("/proc/self/fd")
        )
        with open("/proc/self/smaps_rollup") as lines:
            private = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
        return {
            "seconds": self.opened,
            "sockets": sockets - 1,
            "megabytes": private / 1e6,
        }  # one leads to the benchmark

    def do_stream(self, to: list[str], size: int, start: float) -> dict[str, float]:
        """Send so many bytes over a TCP connection, while another host sends as many to this one.

        to: the address for each rank, or None for a rank that sends nothing. Returns the rate at which they arrived.
        """
        address = to[self.library.rank]
        return {"rate": stream(address, size, start)} if address else {}

    def do_scheduled(self, starts: list[float], **point: Any) -> dict[str, list[float]]:
        """Make a call at each of `starts`, in seconds of the monotonic clock, or when the previous one has returned.

        Returns when each call returned.
        """
        call = self.point(**point).call
        ends = []
        gc.disable()
        for start in starts:
            wait_until(start)
            call()
            ends.append(monotonic())
        gc.enable()
        return {"ends": ends}


def wait_until(moment: float) -> None:
    while (left := moment - monotonic()) > 0:
        sleep(left)


def stream(to: str, size: int, start: float) -> float:
    """Bytes per second that arrive here, while this rank sends `size` bytes to another host; both begin at `start`."""
    with socket.create_server(("", STREAM_PORT)) as listener:
        wait_until(start)  # until then all hosts listen
        sender = Thread(target=send, args=(to, size))
        sender.start()
        connection, _ = listener.accept()
        with connection:
            left, buffer = size, bytearray(1 << 20)
            first_half = size // 2  # in which TCP finds out how much it may send
            while left > first_half and (received := connection.recv_into(buffer)):
                left -= received
            measured, begin = left, monotonic()
            while left and (received := connection.recv_into(buffer)):
                left -= received
            rate = (measured - left) / (monotonic() - begin)
        sender.join()
    return rate


def send(to: str, size: int) -> None:
    block = memoryview(bytes(1 << 20))
    with socket.create_connection((to, STREAM_PORT)) as connection:
        while size:
            size -= connection.send(block[:size])


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # sleeps end at most 1 ns late, and not 50 us
    rank.main(sys.argv[2], sys.argv[3], server=HostServer)
