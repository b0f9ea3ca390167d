"""A notebook: rw.spawn of a cell's functions, awaited works, and interrupts, in a real Jupyter kernel."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

from notebooks import client, errors, notebook, outputs

CELLS = [
    """\
import numpy as np
import rankwise as rw

def job(scale):
    group = rw.init()
    print(f"rank {group.rank} is here")
    return group.all_reduce(np.full(2, scale * group.rank)).tolist()

async def doubled(group):
    x = np.full(2, group.rank + 1.0)
    await group.all_reduce(x, async_op=True)
    return x.tolist()

def awaited():
    import asyncio
    return asyncio.run(doubled(rw.init()))
""",
    "rw.spawn(job, 3, 10)",
    "rw.spawn(awaited, 2)",
    "group = rw.init()\nx = np.ones(2)\nawait group.all_reduce(x, async_op=True)\nawait doubled(group)",
]

# The ranks write their process ids, then wait: rank 0 for a message that nobody sends, and the other for rank 0.
WAITING = """\
import os
import rankwise as rw

def waiting(folder):
    group = rw.init()
    open(os.path.join(folder, f"{group.rank}"), "w").write(f"{os.getpid()}.")
    group.recv((1,), 1) if group.rank == 0 else group.barrier()

rw.spawn(waiting, 2, FOLDER, timeout=100)
"""


def test_functions_of_cells_and_awaited_works() -> None:
    book = notebook(*CELLS)
    client(book).execute()
    printed, shown = outputs(book.cells[1])
    assert sorted(printed.splitlines()) == [f"rank {rank} is here" for rank in range(3)]
    assert shown == "[[30, 30], [30, 30], [30, 30]]"
    assert outputs(book.cells[2]) == ("", "[[3.0, 3.0], [3.0, 3.0]]")
    assert outputs(book.cells[3]) == ("", "[1.0, 1.0]")


LATE = """\
def late():
    group = rw.init(timeout=1)
    if group.rank == 1:
        time.sleep(60)
    group.barrier()

rw.spawn(late, 2)
"""


def test_an_error_names_the_cell_and_is_short() -> None:
    book = notebook("import time, rankwise as rw", LATE)
    client(book, allow_errors=True).execute()
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(book.cells[1].outputs[0]["traceback"]))
    assert '  File "Cell In[2]", line 5, in late' in text
    assert '  File "Cell In[2]", line 4, in late' in text
    assert "<dynamic-code>" not in text
    assert text.count("Python stack of rank 1") == 1
    assert len(text.splitlines()) < 38, text


def test_an_interrupt_ends_the_ranks_and_not_the_kernel(tmp_path: Path) -> None:
    book = notebook(WAITING.replace("FOLDER", repr(str(tmp_path))), "rw.spawn(divmod, 2, 7, 2)")
    one = client(book, allow_errors=True)

    async def interrupted() -> None:
        async with one.async_setup_kernel():
            waiting = asyncio.create_task(one.async_execute_cell(book.cells[0], 0))
            while len(pids(tmp_path)) < 2:
                assert not waiting.done(), book.cells[0].outputs
                await asyncio.sleep(0.02)
            await one.km.interrupt_kernel()
            await waiting
            await one.async_execute_cell(book.cells[1], 1)

    asyncio.run(interrupted())
    assert errors(book.cells[0]) == ["KeyboardInterrupt"]
    for pid in pids(tmp_path):
        assert gone(pid), f"rank {pid} outlived the interrupt"
    assert outputs(book.cells[1]) == ("", "[(3, 1), (3, 1)]")


def pids(folder: Path) -> list[int]:
    """The ranks that have written theirs, which end with a full stop."""
    texts = [path.read_text() for path in folder.iterdir()]
    return [int(text[:-1]) for text in texts if text.endswith(".")]


def gone(pid: int) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False
