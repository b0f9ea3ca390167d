"""A subinterpreter is refused, whatever Python it is: the engine's threads call Python in the main interpreter."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import sys
try:
    import _interpreters
    other, run = _interpreters.create("legacy"), _interpreters.exec
except ImportError:
    import _xxsubinterpreters as _interpreters
    other, run = _interpreters.create(isolated=False), _interpreters.run_string
import rankwise as rw

group = rw.init()
run(other, f'''
import sys
sys.path[:] = {sys.path}
try:
    import rankwise
except ImportError as error:
    print(error)
''')
assert group.all_reduce(1) == 1  # the main interpreter's goes on
"""


def test_a_subinterpreter_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "subinterpreter" in done.stdout, done.stdout
