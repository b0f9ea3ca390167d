"""A pool in a real Jupyter kernel: data that stays, output in the cell that calls, interrupts, and a silent end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from notebooks import client, errors, notebook, outputs

CELLS = [
    """\
import os, time
import numpy as np
import rankwise as rw

pool = rw.Pool(2)
pids = pool.run(os.getpid)
open(PIDS, "w").write(" ".join(map(str, pids)))

def load(scale):
    rw.local.part = np.full(2, scale * (rw.init().rank + 1))
    print("loaded", rw.init().rank)

def total():
    return rw.init().all_reduce(rw.local.part.copy()).tolist()

def fails():
    raise LookupError("on purpose")

def waits():
    print("waiting", flush=True)
    open(WAITS, "a").write(".")
    time.sleep(100)
""",
    "pool.run(load, 10)",
    "pool.run(total)",
    "pool.run(fails)",
    "pool.run(waits)",
    "print(list(pool.map(abs, [-1, 2])))\npool.run(total)",
    "pool.run(os.getpid) == pids",
    "pool.submit(print, 'of a task').result()",
]
FAILS, WAITS = 3, 4


def test_a_pool_in_a_notebook(tmp_path: Path) -> None:
    pids, waits = tmp_path / "pids", tmp_path / "waits"
    cells = [CELLS[0].replace("PIDS", repr(str(pids))).replace("WAITS", repr(str(waits))), *CELLS[1:]]
    book = notebook(*cells)
    one = client(book, allow_errors=True)

    async def executed() -> None:
        async with one.async_setup_kernel():
            for number, cell in enumerate(book.cells):
                running = asyncio.create_task(one.async_execute_cell(cell, number))
                if number == WAITS:
                    while not (waits.exists() and waits.read_text() == ".."):
                        assert not running.done(), cell.outputs
                        await asyncio.sleep(0.02)
                    await one.km.interrupt_kernel()
                await running

    asyncio.run(executed())
    found = [(sorted(outputs(cell)[0].splitlines()), outputs(cell)[1], errors(cell)) for cell in book.cells]
    assert found[0] == ([], "", [])
    assert found[1] == (["loaded 0", "loaded 1"], "[None, None]", [])
    assert found[2] == ([], "[[30, 30], [30, 30]]", [])
    assert found[FAILS] == ([], "", ["LookupError"])
    assert found[WAITS] == (["waiting", "waiting"], "", ["KeyboardInterrupt"])
    assert found[5] == (["[1, 2]"], "[[30, 30], [30, 30]]", [])
    assert found[6] == ([], "True", [])
    assert found[7] == (["of a task"], "", [])
    end = time.monotonic() + 20
    while any(Path("/proc", pid).exists() for pid in pids.read_text().split()):
        assert time.monotonic() < end, "ranks outlive the kernel"
        time.sleep(0.02)
