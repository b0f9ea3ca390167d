"""The switch between the hosts of these tests: how long frames take, and to whom they go."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from multihost.network import CannotMake, Network
from multihost.switch import OFFLOADS, wire_bytes

PING = """
import json, socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("", 5000))
if sys.argv[1] == "answer":
    print("ready", flush=True)
    for _ in range(3):
        data, sender = one.recvfrom(10)
        one.sendto(data, sender)
else:
    one.settimeout(20)
    times = []
    for _ in range(3):
        begin = time.monotonic()
        one.sendto(b"x", (sys.argv[1], 5000))
        one.recv(10)
        times.append(time.monotonic() - begin)
    print(json.dumps(times))
"""


def test_a_segmented_frame_takes_the_time_of_its_segments() -> None:
    plain = OFFLOADS.pack(0, 0, 0, 0, 0, 0) + bytes(100)
    assert wire_bytes(plain) == 124
    headers, segment = 54, 1460
    large = OFFLOADS.pack(1, 1, headers, segment, 34, 16) + bytes(headers + 2 * segment + 1)
    assert wire_bytes(large) == 2 * segment + 1 + 3 * (headers + 24)


def test_each_way_takes_the_delay() -> None:
    try:
        network = Network(3, delay=30)
    except CannotMake as why:
        pytest.skip(f"no hosts can be made here: {why}")
    with network:
        program = [sys.executable, "-c", PING]
        with subprocess.Popen(
            network.hosts[2].command(*program, "answer"), stdout=subprocess.PIPE, text=True
        ) as answerer:
            assert answerer.stdout is not None
            assert answerer.stdout.readline() == "ready\n"
            asked = subprocess.run(
                network.hosts[0].command(*program, "10.0.0.3"), capture_output=True, text=True, timeout=60, check=True
            )
        times = json.loads(asked.stdout)
        assert min(times) >= 2 * 0.030
