"""A master hands out tasks of very different length, and takes the results in the order in which they arrive.

    rankwise run -n 4 examples/tasks.py

The tasks are the lines of a picture of the Mandelbrot set; a line through the middle takes far longer than one at the
edge, so no division in advance is fair. Instead rank 0 sends each worker one task, and the next one when the worker's
result arrives. A task is an object (`send_object`, `recv_object`). A result is an array whose length and sender the
master learns from `recv_any`: a worker leaves out the points at both ends of a line that are far from the set. The tag
of the message is the number of the line.

The master also computes the whole picture itself. With more than one rank, it compares the two pictures.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import rankwise as rw

Line = np.ndarray[Any, np.dtype[np.int64]]


def line(task: dict[str, Any]) -> Line:
    """How many steps each point of a line takes to leave the neighbourhood of the set."""
    points = np.linspace(-2.1, 0.7, task["width"]) + 1j * task["height"]
    z, count = np.zeros_like(points), np.zeros(task["width"], np.int64)
    near = np.ones(task["width"], bool)
    for _ in range(task["limit"]):
        z[near] = z[near] ** 2 + points[near]
        near &= np.abs(z) < 2
        count += near
        if not near.any():
            break
    return count


def trimmed(counts: Line, most: int) -> tuple[int, Line]:
    """Where the first cell with more than `most` steps is, and the cells from there to the last such cell."""
    inside = np.flatnonzero(counts > most)
    return (int(inside[0]), counts[inside[0] : inside[-1] + 1]) if inside.size else (0, counts[:0])


def work(group: rw.Group) -> int:
    """A worker: does tasks until there are no more. Returns how many it did."""
    done = 0
    while (task := group.recv_object(src=0)) is not None:
        first, cells = trimmed(line(task), task["most"])
        group.send(np.concatenate([[first], cells]), dst=0, tag=task["number"])
        done += 1
    return done


def collect(group: rw.Group, tasks: list[dict[str, Any]], picture: Line) -> list[int]:
    """The master: fills the picture from the results. Returns how many tasks each rank did."""
    done = [0] * group.world_size
    waiting = iter(tasks)
    for worker in range(1, group.world_size):
        group.send_object(next(waiting, None), dst=worker)
    for _ in tasks:
        result = group.recv_any(tag=rw.ANY)  # from any worker, and of any length
        first, cells = result.data[0], result.data[1:]
        picture[result.tag, first : first + cells.size] = cells
        assert result.source is not None  # only a receive from the null rank has none
        done[result.source] += 1
        group.send_object(next(waiting, None), dst=result.source)
    return done


def alone(tasks: list[dict[str, Any]], picture: Line) -> None:
    for task in tasks:
        first, cells = trimmed(line(task), task["most"])
        picture[task["number"], first : first + cells.size] = cells


def main() -> None:
    parser = argparse.ArgumentParser(description="A master and workers.")
    parser.add_argument("--lines", type=int, default=24, help="how many tasks")
    parser.add_argument("--width", type=int, default=76, help="points in a line")
    parser.add_argument("--limit", type=int, default=2000, help="steps after which a point counts as inside the set")
    args = parser.parse_args()

    group = rw.init()
    heights = np.linspace(-1.2, 1.2, args.lines)
    same = {"width": args.width, "limit": args.limit, "most": 3}
    tasks = [{"number": number, "height": float(height), **same} for number, height in enumerate(heights)]
    if group.rank:
        work(group)
        return
    expected = np.zeros((args.lines, args.width), np.int64)
    alone(tasks, expected)
    if group.world_size == 1:
        picture, done = expected, [args.lines]
    else:
        picture = np.zeros_like(expected)
        done = collect(group, tasks, picture)
        np.testing.assert_array_equal(picture, expected)
    shades = " .,:;+*xX#%@"
    for row in picture:
        print("".join(shades[min(int(np.log2(1 + count)), len(shades) - 1)] for count in row).rstrip())
    share = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(done) if count)
    print(f"{args.lines} tasks ({share}); the picture is the one that one rank computes")


if __name__ == "__main__":
    main()
