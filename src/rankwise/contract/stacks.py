"""The Python stacks in the message of a CollectiveTimeout."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping


def in_words(stacks: Mapping[int, str]) -> str:
    """What follows the other facts in the message: the ranks' stacks, or, of no rank, the calling thread's."""
    if not stacks:
        frame = sys._getframe()
        return "\nPython stack of this rank, innermost last:\n" + "".join(traceback.format_stack(frame.f_back)).rstrip()
    parts = (f"Python stacks of rank {rank}, innermost last:\n{text}".rstrip() for rank, text in stacks.items())
    return "\n" + "\n".join(parts)


def all_threads() -> str:
    """The stacks of this process's threads, but for the calling one, the main thread's last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()
    parts = []
    for ident in sorted((ident for ident in frames if ident != own), key=lambda ident: ident == main):
        name = names.get(ident, "a thread that Python did not start")
        parts.append(f"  thread {name}:\n" + "".join(traceback.format_stack(frames[ident])))
    return "".join(parts)
