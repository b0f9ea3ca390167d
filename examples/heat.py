"""Heat spreads over a plate that is divided among a grid of ranks, with the same bits as on one rank.

    rankwise run -n 4 examples/heat.py

Each step of the two-dimensional heat equation replaces every cell by a weighted mean of itself and its four
neighbours. The ranks form a grid (`rw.Mesh.balanced`), and each holds one block of the plate with a layer of ghost
cells around it. Before each step `mesh.exchange_halo` copies the neighbours' cells into that layer. The plate is
periodic from left to right, like a tube. Its upper and lower edges keep their temperature, because the exchange leaves
the ghost cells there as they are.

At the end `mesh.gather` puts the blocks together on rank 0, which compares the plate with one that it computes alone,
and prints it. Both computations do the same additions in the same order, so all bits are equal.
"""

from __future__ import annotations

import argparse
import zlib
from typing import Any

import numpy as np

import rankwise as rw

Plate = np.ndarray[Any, np.dtype[np.float64]]

HOT, COLD = 100.0, 0.0
SPREAD = 0.2  # the share of the difference between two neighbours that moves in one step


def start(rows: int, columns: int) -> Plate:
    """The whole plate with its ghost cells: hot along a part of the upper edge and in a spot, else cold."""
    plate = np.full((rows + 2, columns + 2), COLD)
    plate[0, columns // 4 : columns // 2] = HOT
    plate[rows // 2 : rows // 2 + 3, 2 * columns // 3 : 2 * columns // 3 + 6] = HOT
    return plate


def step(x: Plate) -> None:
    """One step, in place, on the cells inside the ghost layer."""
    inner = x[1:-1, 1:-1]
    inner += SPREAD * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * inner)


def block(length: int, parts: int, part: int) -> tuple[int, int]:
    """Where this part begins and ends if `length` cells are divided as evenly as possible."""
    return part * length // parts, (part + 1) * length // parts


def serial(rows: int, columns: int, steps: int) -> Plate:
    plate = start(rows, columns)
    for _ in range(steps):
        plate[:, 0], plate[:, -1] = plate[:, -2], plate[:, 1].copy()
        step(plate)
    return plate[1:-1, 1:-1]


def picture(plate: Plate, width: int = 60, height: int = 14) -> str:
    shades = " .:-=+*#%@"
    rows = np.linspace(0, plate.shape[0] - 1, min(height, plate.shape[0])).astype(int)
    columns = np.linspace(0, plate.shape[1] - 1, min(width, plate.shape[1])).astype(int)
    levels = np.sqrt(plate[np.ix_(rows, columns)] / HOT) * (len(shades) - 1)
    return "\n".join("".join(shades[round(level)] for level in row) for row in levels)


def main() -> None:
    parser = argparse.ArgumentParser(description="The heat equation on a grid of ranks.")
    parser.add_argument("--rows", type=int, default=96, help="cells from the upper to the lower edge")
    parser.add_argument("--columns", type=int, default=160, help="cells around the tube")
    parser.add_argument("--steps", type=int, default=300, help="time steps")
    args = parser.parse_args()

    group = rw.init()
    with rw.Mesh.balanced(group, ("rows", "columns"), periodic="columns") as mesh:
        top, bottom = block(args.rows, mesh.axes["rows"], mesh.coordinates["rows"])
        left, right = block(args.columns, mesh.axes["columns"], mesh.coordinates["columns"])
        mine = start(args.rows, args.columns)[top : bottom + 2, left : right + 2].copy()
        for _ in range(args.steps):
            mesh.exchange_halo(mine, "rows")
            mesh.exchange_halo(mine, "columns")
            step(mine)
        plate = mesh.gather(mine[1:-1, 1:-1])
        if plate is not None:
            np.testing.assert_array_equal(plate, serial(args.rows, args.columns, args.steps))  # bit for bit
            print(picture(plate))
            print(f"{args.steps} steps on a grid of {mesh.axes['rows']} x {mesh.axes['columns']} ranks")
            print(f"mean {plate.mean():.6f}, checksum {zlib.crc32(plate.tobytes()):08x}: as on one rank, bit for bit")


if __name__ == "__main__":
    main()
