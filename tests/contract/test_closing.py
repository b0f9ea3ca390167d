"""What is still open when the interpreter exits."""

from __future__ import annotations

import subprocess
import sys

# Libraries that keep modules alive, such as multiprocess, have the globals of these modules set to None before the last
# objects go.
KEPT = """
import sys
import numpy as np
import rankwise as rw
group = rw.init()
work = group.all_reduce(np.ones(3), async_op=True)
part = group.dup()
stream, state, event = rw.overlap.Stream(), rw.elastic.State(objects={"n": 1}), rw.overlap.Event()
reducer = rw.overlap.GradientReducer([np.zeros(3)], group)
sys.kept = list(sys.modules.values())
"""


def test_nothing_fails_at_exit_if_modules_outlive_their_globals() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
