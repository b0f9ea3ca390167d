"""The Python side of a stock tclsh: a child process that runs commands requested through a pipe.

    tclsh -> child   LENGTHS\\n WORDS    the lengths in bytes of the UTF-8 words that follow: a command and
                                        its arguments; an empty list requests the definitions
    child -> tclsh   CODE LENGTH ERRORCODE\\n TEXT    ok or error, the length in bytes of the text

The child ends when its tclsh ends in any way, because that closes the pipe.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from typing import BinaryIO

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.interpreter import definitions, leave
from rankwise.frontends.tcl.parameters import quoted
from rankwise.frontends.tcl.session import Answer, Session

GRACE = 1.0  # seconds that a running command may take after tclsh has ended


def main() -> int:
    """Serve requests on standard input until it ends; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for tclsh, and this process ends with it
    requests, answers = _private_pipes()
    threading.Thread(target=_end_with_tclsh, args=(requests.fileno(),), daemon=True).start()
    session = Session(COMMANDS)
    try:
        serve(session, requests, answers)
    except BrokenPipeError:  # tclsh ended while a command ran
        return 1
    finally:
        session.close()
        leave()
    return 0


def serve(session: Session, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until they end."""
    while header := requests.readline():
        code, text, why = _answer(session, [requests.read(int(length)) for length in header.split()])
        data = text.encode("utf-8", "backslashreplace")
        answers.write(b"%s %d %s\n%s" % (code.encode(), len(data), why.encode(), data))
        answers.flush()


def _answer(session: Session, words: list[bytes]) -> Answer:
    if not words:
        return "ok", definitions(), "NONE"
    try:
        name, *rest = [word.decode() for word in words]
    except UnicodeDecodeError as error:  # Tcl 8 sends half of a surrogate pair like any other character
        given = quoted(error.object.decode(errors="backslashreplace"))
        return (
            "error",
            f"Invalid text: {given}. Must be Unicode without lone surrogates.",
            "RANKWISE UnicodeDecodeError",
        )
    return session.answer(name, rest)


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output under new descriptors, so that nothing else reads or writes them."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")


def _end_with_tclsh(requests: int) -> None:
    """End a command that waits for other ranks after tclsh has ended."""
    watch = select.poll()
    watch.register(requests, 0)  # no events, but poll always reports a hang-up
    while not watch.poll():
        pass
    time.sleep(GRACE)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
