"""Text laid out for the width of the terminal: tables, paragraphs, and commands on one line.

No word is cut: a word that is longer than the line stays whole.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence

USUAL = 80  # columns where there is no terminal
NARROWEST = 24  # columns in which text is wrapped beside something else; with fewer, it goes below

_ENTRY = re.compile(r"( *\S.*? {2,})(\S.*)")  # "  name   what it is"


def width() -> int:
    """COLUMNS if it is set, else the columns of the terminal, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or USUAL  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # no standard output, or one that is not a terminal
        return USUAL


def row_width() -> int | None:
    """The width to which the rows of a table are wrapped; None for a pipe, in which each row is one line."""
    return width() if sys.stdout is not None and sys.stdout.isatty() else None


def columns(rows: Sequence[Sequence[str]], layout: str, width: int | None = None) -> list[str]:
    """The text of each row, which has several lines if it is wrapped; the first row is the heading.

    layout: < or > aligns each column to the left or right; the last column has none and is not padded.
    width: the last column is wrapped under itself to this width, or goes below the row if it has no room.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(layout))]
    lines = []
    for row in rows:
        cells = [f"{text:{side}{width}}" for text, side, width in zip(row, layout, widths, strict=False)]
        line = "  ".join([*cells, *row[len(layout) :]]).rstrip()
        if width is not None and len(line) > width:
            beside = "".join(f"{cell}  " for cell in cells)
            if width - len(beside) >= max(NARROWEST, *map(len, row[-1].split()), 0):
                line = "\n".join(_hang(beside, row[-1], width))
            else:
                line = "\n".join([beside.rstrip(), *_wrap(row[-1], width, " " * 6, " " * 6)])
        lines.append(line)
    return lines


def one_line(command: str, width: int) -> str:
    """The command on one line, cut after the last word for which there is room.

    The folders of Python and of its program are left out. The launcher is called rankwise, not python -m rankwise.
    """
    import textwrap  # it takes time to import

    words = command.split()
    names = [os.path.basename(word) for word in words[:2]]
    if names[:1] and names[0].startswith("python"):
        if names[1:] == ["rankwise"]:
            del words[0]
        elif words[1:3] == ["-m", "rankwise"]:
            del words[:2]
        else:
            words[1:2] = names[1:2]
    words[:1] = [os.path.basename(word) for word in words[:1]]
    return textwrap.shorten(" ".join(words), max(width, NARROWEST), placeholder=" …")


def fill(text: str, width: int) -> str:
    """Paragraphs and lists wrapped to the width.

    Consecutive lines without indentation are a paragraph. A line with two or more spaces between its
    words is an entry of a list, and lines that begin below its second part continue it. Other indented
    lines are commands, which stay as they are.
    """
    return "\n".join(line for block in _blocks(text.splitlines()) for line in _filled(block, width)) + "\n"


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Paragraphs, each as one line, lists with an entry in each line, and empty lines."""
    block: list[str] = []
    in_list = False
    for line in lines:
        entry = line.startswith(" ") or _ENTRY.fullmatch(line) is not None
        if block and (not line or entry != in_list):
            yield block
            block = []
        in_list = entry
        if not line:
            yield [""]
        elif not block:
            block = [line]
        elif not entry:
            block = [f"{block[0]} {line}"]
        elif _continues(line, block[-1]):
            block[-1] = f"{block[-1]} {line.strip()}"
        else:
            block.append(line)
    if block:
        yield block


def _continues(line: str, entry: str) -> bool:
    parts = _ENTRY.fullmatch(entry)
    return parts is not None and len(line) - len(line.lstrip()) == len(parts[1])


def _filled(block: Sequence[str], width: int) -> Iterator[str]:
    entries = [_ENTRY.fullmatch(line) for line in block]
    below = any(
        entry is not None and len(line) > width and width - len(entry[1]) < NARROWEST
        for entry, line in zip(entries, block, strict=True)
    )
    for entry, line in zip(entries, block, strict=True):
        if entry is not None and below:
            yield entry[1].rstrip()
            yield from _wrap(entry[2], width, " " * 6, " " * 6)
        elif entry is not None:
            yield from _hang(entry[1], entry[2], width)
        elif line.startswith(" "):
            yield line
        else:
            yield from _wrap(line, width) or [""]


def _hang(beside: str, text: str, width: int) -> list[str]:
    """The text, wrapped to the right of what it is beside."""
    return _wrap(text, width, beside, " " * len(beside))


def _wrap(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    import textwrap  # it takes time to import

    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
