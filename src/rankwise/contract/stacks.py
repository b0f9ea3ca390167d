"""The Python stacks in the message of a CollectiveTimeout."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping
from textwrap import indent

from rankwise.contract.ranks import ranks_in_words


def in_words(stacks: Mapping[int, str]) -> str:
    """The last part of the message: each stack once, with the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, text in stacks.items():
        ranks.setdefault(text.rstrip(), []).append(rank)
    words = ""
    for text, whose in ranks.items():
        is_stack = text.startswith(" ")  # else it is the reason why there is none
        words += f"\n  Python stack of {ranks_in_words(whose)}"
        words += f", innermost last:\n{indent(text, '  ')}" if is_stack else f": {text}"
    return words


def all_threads() -> str:
    """The stacks of all threads of this process except the calling one, the main thread's last.

    Threads are named if there are several.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != own}
    parts = []
    for ident in sorted(frames, key=lambda ident: ident == main):
        name = names.get(ident, "a thread that Python did not start")
        heading = f"  thread {name}:\n" if len(frames) > 1 else ""
        parts.append(heading + "".join(traceback.format_stack(frames[ident])))
    return "".join(parts)
