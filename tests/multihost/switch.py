"""A switch between hosts whose cards have a set rate and whose cables have a set delay.

    python switch.py PID... [--rate MBIT] [--delay MS]

Each PID's network namespace gets a card `eth0`, a TAP device, whose frames this process forwards: those of the
first host have the address 02:00:00:00:00:01, and so on. It says "made" when all cards are there, takes a host out
of the network at a line "cut N" of its input, and ends, and with it all cards, at the end of its input.

A frame occupies its sender's card for as long as the rate demands, arrives `delay` later, and occupies the
receiver's card as long, beginning no earlier than it arrives: like two cards with a full-duplex cable each. A card
that is busy takes no further frame, so they queue in the host's kernel as before a real card. Frames are as large as
TCP makes them (up to 64 KiB: the card offers segmentation and checksums, virtio_net.h), but take the time of
the Ethernet frames of 1,500 bytes that they stand for.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import os
import select
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

CARD = b"eth0"
# linux/if_tun.h, linux/virtio_net.h
TUNSETIFF, TUNSETOFFLOAD, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x400454D0, 0x0002, 0x1000, 0x4000
CHECKSUMS, TCP4 = 1, 2
CLONE_NEWNET = 0x40000000
PR_SET_TIMERSLACK = 29  # linux/prctl.h
OFFLOADS = struct.Struct("=BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
LARGEST = 1 << 17
ON_THE_WIRE = 24  # bytes of preamble, checksum and gap of an Ethernet frame
AHEAD = 0.0002  # seconds before a card is free at which its next frame is taken, so that it does not fall idle


@dataclass
class Card:
    """One host's card. sends, receives: until when it is busy with frames in that direction."""

    fd: int
    sends: float = 0.0
    receives: float = 0.0
    connected: bool = True


def wire_bytes(frame: bytes) -> int:
    """How many bytes of the wire a frame takes, as the Ethernet frames that a card without offloads would send."""
    _, kind, headers, segment, _, _ = OFFLOADS.unpack_from(frame)
    size = len(frame) - OFFLOADS.size
    if kind == 0 or segment == 0:
        return size + ON_THE_WIRE
    frames = -(-(size - headers) // segment)
    return size - headers + frames * (headers + ON_THE_WIRE)


def open_card(pid: int) -> int:
    """A card in the network namespace of a process; returns its descriptor."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", CARD, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(card, TUNSETOFFLOAD, CHECKSUMS | TCP4)
    return card


class Switch:
    """Forwards frames between cards. rate: bytes a second, or None; delay: seconds."""

    def __init__(self, cards: Sequence[Card], rate: float | None, delay: float) -> None:
        self._cards = cards
        self._second = 1 / rate if rate else 0.0
        self._delay = delay
        self._under_way: list[tuple[float, int, int, bytes]] = []  # when it arrives, the number, the card, the frame
        self._frames = 0

    def run(self) -> None:
        """Forward until the end of the input."""
        while True:
            now = time.monotonic()
            free = [card.fd for card in self._cards if card.sends <= now + AHEAD]
            due = [card.sends - AHEAD for card in self._cards if card.fd not in free]
            if self._under_way:
                due.append(self._under_way[0][0])
            # select, since epoll and poll sleep for whole milliseconds.
            ready, _, _ = select.select([0, *free], [], [], max(0.0, min(due) - now) if due else None)
            for fd in ready:
                if fd:
                    self._take(next(number for number, card in enumerate(self._cards) if card.fd == fd))
                elif not self._command():
                    return
            self._deliver()

    def _command(self) -> bool:
        words = os.read(0, 4096).split()
        if words:
            self._cards[int(words[1])].connected = False
        return bool(words)

    def _take(self, number: int) -> None:
        """Send what a card has, as long as it is free."""
        card = self._cards[number]
        while card.sends <= time.monotonic() + AHEAD:
            try:
                frame = os.read(card.fd, LARGEST)
            except BlockingIOError:
                return
            seconds = wire_bytes(frame) * self._second
            begin = max(card.sends, time.monotonic())
            card.sends = begin + seconds
            last = int.from_bytes(frame[OFFLOADS.size + 4 : OFFLOADS.size + 6], "big")
            group = frame[OFFLOADS.size] & 1  # broadcast or multicast
            for other, there in enumerate(self._cards):
                if other == number or not (group or other == last - 1) or not (card.connected and there.connected):
                    continue
                there.receives = max(there.receives, begin + self._delay) + seconds
                self._frames += 1
                heapq.heappush(self._under_way, (there.receives, self._frames, other, frame))

    def _deliver(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, _, number, frame = heapq.heappop(self._under_way)
            with suppress(OSError):  # the card is not up
                os.write(self._cards[number].fd, frame)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pids", type=int, nargs="+")
    parser.add_argument("--rate", type=float, help="Mbit/s of each card in each direction")
    parser.add_argument("--delay", type=float, default=0.0, help="ms from one card to another")
    options = parser.parse_args()
    with suppress(PermissionError):  # its time is the network's, whatever else this machine does
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # sleeps end at most 1 ns late, and not 50 us
    try:
        cards = [Card(open_card(pid)) for pid in options.pids]
    except OSError as error:
        sys.exit(f"no TAP device can be made here: {error}")
    print("made", flush=True)
    Switch(cards, options.rate * 1e6 / 8 if options.rate else None, options.delay / 1e3).run()


if __name__ == "__main__":
    main()
