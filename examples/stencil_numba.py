"""The heat equation on a plate whose rows are divided over the ranks, in one function that Numba compiles.

    rankwise run -n 4 examples/stencil_numba.py

The whole loop, its messages and its reductions run without the interpreter. Alone it is one rank. Needs
`pip install 'rankwise[numba]'`. Each rank compares its rows with the serial computation.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numba
import numpy as np

import rankwise as rw
from rankwise.numba import all_reduce, irecv, isend, rank, wait, world_size

Plate = np.ndarray[Any, np.dtype[np.float64]]


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def exchange(handle: int, plate: Plate) -> None:
    """Fill the first and the last row with the outer rows of the neighbours."""
    above, below = rank(handle) - 1, rank(handle) + 1
    requests = []
    if above >= 0:
        requests.append(irecv(handle, plate[0], above, 1))
        requests.append(isend(handle, plate[1], above, 0))
    if below < world_size(handle):
        requests.append(irecv(handle, plate[-1], below, 0))
        requests.append(isend(handle, plate[-2], below, 1))
    for request in requests:
        wait(request)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def heat(handle: int, plate: Plate, tolerance: float, most: int) -> tuple[Plate, int, float]:
    """Steps until no cell of any rank changes by more than the tolerance: the plate, how many, and the last change."""
    new, change = plate.copy(), np.zeros(1)
    for step in range(most):
        exchange(handle, plate)
        change[0] = 0.0
        for i in range(1, plate.shape[0] - 1):
            for j in range(1, plate.shape[1] - 1):
                around = plate[i - 1, j] + plate[i + 1, j] + plate[i, j - 1] + plate[i, j + 1]
                new[i, j] = 0.25 * around
                change[0] = max(change[0], abs(new[i, j] - plate[i, j]))
        plate, new = new, plate
        all_reduce(handle, change, "max")
        if change[0] <= tolerance:
            return plate, step + 1, change[0]
    return plate, most, change[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="of the plate, and columns")
    parser.add_argument("--steps", type=int, default=500, help="at most")
    options = parser.parse_args()
    rows, columns = options.rows, options.rows
    group = rw.init()
    whole = np.zeros((rows + 2, columns + 2))
    whole[:, 0] = 100.0  # the left edge is hot
    bounds = np.linspace(0, rows, group.world_size + 1).astype(int)
    first, last = bounds[group.rank], bounds[group.rank + 1]
    heat(group.handle, whole[first : last + 2].copy(), 1e-3, 1)  # compiles it
    began = time.perf_counter()
    plate, steps, change = heat(group.handle, whole[first : last + 2].copy(), 1e-3, options.steps)
    took = time.perf_counter() - began
    with rw.init().split(group.rank) as alone:
        serial, *_ = heat(alone.handle, whole, 1e-3, options.steps)
    assert (plate[1:-1] == serial[first + 1 : last + 1]).all(), "the ranks' rows differ from the serial ones"
    if group.rank == 0:
        print(f"{steps} steps on {group.world_size} ranks, {1e6 * took / steps:.0f} us each")
        print(f"the last change is {change:.6f}, as on one rank, bit for bit")


if __name__ == "__main__":
    main()
