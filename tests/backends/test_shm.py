"""Joining what a launcher left for this process."""

from __future__ import annotations

import os
import subprocess
import sys

from rankwise._native import Segment

AGAIN = """
import rankwise as rw
for turn in range(3):
    with rw.init(timeout=20) as group:
        assert group.all_reduce(1) == 2 and group.backend == "shm"
print("ok")
"""


def test_ranks_come_back_after_close() -> None:
    segment = Segment.create(2)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", AGAIN],
            pass_fds=[segment.fd],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANKWISE_RANK": str(rank),
                "RANKWISE_WORLD_SIZE": "2",
                "RANKWISE_SEGMENT_FD": str(segment.fd),
            },
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["ok\n", "ok\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_a_descriptor_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rankwise as rw; rw.init()"],
        env={**os.environ, "RANKWISE_RANK": "0", "RANKWISE_WORLD_SIZE": "2", "RANKWISE_SEGMENT_FD": "97"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ValueError: RANKWISE_SEGMENT_FD=97: expected the descriptor")
