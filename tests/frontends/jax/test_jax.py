"""rankwise.jax: results, order, derivatives and errors on several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="there is no JAX; pip install jax")
PROGRAM = Path(__file__).with_name("program.py")
IMPORTS = "import jax, jax.numpy as jnp, rankwise as rw\nfrom rankwise.jax import all_reduce, broadcast\n"


def run(n: int, *program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), *program]
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **variables}  # it compiles sooner
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


@pytest.mark.parametrize("n", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3)), 2])
def test_what_it_gives(n: int) -> None:
    done = run(n, str(PROGRAM))
    assert (done.returncode, done.stdout) == (0, "as expected\n" * n), done.stderr


def test_an_error_has_both_lines(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        IMPORTS
        + "f = jax.jit(all_reduce) if rw.init().rank else jax.jit(broadcast)\n"
        + "f(jnp.ones(3)).block_until_ready()\n"
    )
    done = run(2, str(program))
    assert done.returncode == 1
    for line in ("rank 0: broadcast(count=3, dtype=float32, root=0)", "rank 1: all_reduce(count=3, dtype=float32"):
        assert f"{line}" in done.stderr
    assert done.stderr.count(f"{program}:4") >= 2


def test_compiled_functions_follow_the_default_group(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        IMPORTS
        + "total = jax.jit(lambda x: all_reduce(x))\n"
        + "for _ in range(3):\n"
        + "    with rw.init():\n"
        + "        assert total(jnp.ones(3)).tolist() == [2, 2, 2]\n"
        + "group = rw.init()\n"
        + "assert total(jnp.ones(3)).tolist() == [2, 2, 2]\n"
        + "group.shrink()\n"
        + "group.close()\n"
        + "assert total(jnp.ones(3)).tolist() == [2, 2, 2]\n"
    )
    done = run(2, str(program))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_compiled_for_one_group_says_when_that_is_closed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import gc, weakref\n"
        + IMPORTS
        + "x, group = jnp.ones(3), rw.init()\n"
        + "part = group.split(0)\n"
        + "compiled = jax.jit(lambda x: all_reduce(x)).lower(x).compile()\n"
        + "of_part = jax.jit(lambda x: all_reduce(x, group=part))\n"
        + "for total in (compiled, of_part, compiled):\n"
        + "    assert total(x).tolist() == [2, 2, 2]\n"
        + "first = weakref.ref(group)\n"
        + "group.close(); part.close()\n"
        + "group = rw.init(); gc.collect()\n"
        + "assert first() is not None  # compiled code has its address\n"
        + "for total in (compiled, of_part):\n"
        + "    try: total(x).block_until_ready()\n"
        + "    except jax.errors.JaxRuntimeError as error: assert 'communicator is closed' in str(error), error\n"
        + "    else: raise AssertionError\n"
        + "assert group.all_reduce(1) == 2\n"
    )
    done = run(2, str(program))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_pending_at_the_end_is_complete(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IMPORTS + "rw.init()\nf = jax.jit(all_reduce)\nfor _ in range(50): f(jnp.ones(100_000))\n")
    done = run(2, str(program))
    assert (done.returncode, done.stderr) == (0, "")


def test_ranks_that_are_threads_name_their_group(tmp_path: Path) -> None:
    """What JAX has compiled for one of them, it would call on the others."""
    program = tmp_path / "program.py"
    program.write_text(
        IMPORTS
        + "total = jax.jit(all_reduce, static_argnames='group')\n"
        + "def sums(): return total(1.0, group=rw.init()).item()\n"
        + "def mixed(): rw.init(); return total(1.0)\n"
        + "print(rw.spawn(sums, 2, threads=True))\n"
        + "try: rw.spawn(mixed, 2, threads=True)\n"
        + "except ValueError as error: print(error)\n"
    )
    done = run(1, "--", sys.executable, "-W", "ignore", str(program))
    assert done.stdout.startswith("[2.0, 2.0]\ngroup=None: ranks that are threads"), done.stderr


def test_it_needs_no_compiler(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IMPORTS + "rw.init()\nprint(all_reduce(1.0))\n")
    done = run(1, str(program), CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr
