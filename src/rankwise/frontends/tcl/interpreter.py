"""The commands' Tcl side, and a Tcl interpreter in this process: tkinter's Tcl 8.6, without Tk and without a screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from rankwise.contract.errors import BackendUnavailable, ClosedError
from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.parameters import Command
from rankwise.frontends.tcl.session import Answer, Session
from rankwise.group.default_group import default_group

# ---- the Tcl side of the commands, which is the same in every interpreter ----

VERSION = "1.0"
"""The version of the Tcl package torchtcl; tclsh/pkgIndex.tcl has it too."""

# Once the commands exist, loading the library again succeeds and does nothing.
_LOADED = """
if {[info commands ::torch::Load] eq ""} {
    rename ::load ::torch::Load
    proc ::load {file args} {
        if {[file tail $file] ne "libtorchtcl.so"} {tailcall ::torch::Load $file {*}$args}
    }
}
"""

# Tcl calls the handler of the global namespace for every command that does not exist, in any namespace.
_UNKNOWN = """
proc ::torch::Unknown {otherwise name args} {
    if {![regexp {^(?:::)?torch::(\\w+)$} $name -> plain]} {tailcall {*}$otherwise $name {*}$args}
    lassign [::torch::Request $plain] code text why
    return -code error -errorcode $why $text
}
namespace eval :: {
    if {[lindex [namespace unknown] 0] ne "::torch::Unknown"} {
        namespace unknown [list ::torch::Unknown [namespace unknown]]
    }
}
"""


def definitions() -> str:
    """A script that defines every command and alias as a procedure.

    Each procedure calls the interpreter's ::torch::Request, which takes a command's name and words and
    returns a list: ok or error, the result or the message, errorCode. A command that fails looks in
    errorInfo like one of Tcl's own, because it is a procedure. ::torch::python is the path of this Python.
    """
    python = f"set ::torch::python {quoted(sys.executable)}"
    return "\n".join(["namespace eval ::torch {}", python, *_procedures(), _LOADED, _UNKNOWN])


def _procedures() -> Iterator[str]:
    for command in COMMANDS.values():
        for name in dict.fromkeys((command.name, command.alias)):
            yield f"proc ::torch::{name} args {{\n{_body(command)}\n}}"


def _body(command: Command) -> str:
    ask = f"lassign [::torch::Request {command.name} {{*}}$args] code text why"
    prints = 'if {$code eq "ok"} {puts $text; set text ""}' if command.prints else ""
    return "\n".join(line for line in (ask, prints, "return -code $code -errorcode $why $text") if line)


def quoted(text: str) -> str:
    """`text` as one word of a Tcl script."""
    for character in '\\"$[]{}':
        text = text.replace(character, f"\\{character}")
    return f'"{text}"'


# Scripts written for a stock tclsh require the package, which is already present. tkinter removes `exit`.
_ADAPTED = f"""
package provide torchtcl {VERSION}
proc ::exit {{{{code 0}}}} {{
    if {{![string is integer -strict $code]}} {{error "expected integer but got \\"$code\\""}}
    ::torch::Flush
    ::torch::Exit $code
}}
proc ::torch::Flush {{}} {{
    foreach channel [chan names] {{catch {{flush $channel}}}}
}}
fconfigure stdout -buffering line
"""


class TclError(Exception):
    """A script failed. The text is Tcl's message; info is Tcl's errorInfo, which shows where."""

    def __init__(self, message: str, info: str) -> None:
        super().__init__(message)
        self.info = info


class Interpreter:
    """A Tcl interpreter with the torch:: commands, for the thread that created it.

    Raises BackendUnavailable if this Python has no Tcl.
    """

    def __init__(self) -> None:
        try:
            import tkinter
        except ImportError as error:
            raise BackendUnavailable(
                "tcl",
                f"this Python has no Tcl ({error})",
                "apt install python3-tk on Debian and Ubuntu, dnf install python3-tkinter on Fedora; "
                "a Python built from source must be rebuilt after installing tk-dev; "
                "or install tcl, since rankwise tclsh can run on the tclsh on PATH",
            ) from error
        self._error = tkinter.TclError
        self._tcl = tkinter.Tcl()
        self.session = Session(COMMANDS)
        self._tcl.createcommand("::torch::Request", self._request)
        self._tcl.createcommand("::torch::Exit", _exit)
        self.eval(definitions())
        self.eval(_ADAPTED)

    def eval(self, script: str) -> str:
        """Run a script and return its result. Raises TclError if it fails."""
        try:
            return str(self._tcl.eval(script))
        except self._error as error:
            raise self._failure(error) from None

    def set(self, name: str, value: str) -> None:
        """Set a global variable."""
        self._call("set", f"::{name}", value)

    def source(self, path: str, arguments: list[str]) -> None:
        """Run a script file as tclsh does, with argv0, argv and argc. Raises TclError if it fails."""
        self.set("argv0", path)
        self._call("set", "::argv", tuple(arguments))
        self.set("argc", str(len(arguments)))
        try:
            self._call("source", "-encoding", "utf-8", path)
        except TclError as error:
            # Keep only the line (file "..." line ...), and drop how rankwise ran the file.
            error.info = error.info.rpartition('\n    invoked from within\n"source -encoding utf-8 ')[0] or error.info
            raise

    def is_complete(self, script: str) -> bool:
        """False if a brace, bracket or quote is still open."""
        return bool(self._call("info", "complete", script))

    def names(self, pattern: str) -> list[str]:
        """The commands whose names match, and all namespaces, which end in ::."""
        commands = self._tcl.splitlist(self._call("info", "commands", pattern))
        spaces = self._tcl.splitlist(self._call("namespace", "children", "::"))
        return [*map(str, commands), *(f"{str(name).removeprefix('::')}::" for name in spaces)]

    def flush(self) -> None:
        """Flush Tcl's output channels; errors of closed ones are ignored."""
        self._call("::torch::Flush")

    def close(self) -> None:
        self.session.close()

    def _call(self, *words: object) -> Any:
        try:
            return self._tcl.call(*words)
        except self._error as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> TclError:
        return TclError(str(error), str(self._tcl.getvar("errorInfo")))

    def _request(self, name: str, *words: str) -> Answer:
        return self.session.answer(name, words)


def leave() -> None:
    """Close the group of all ranks, if it exists, before the process ends."""
    try:
        default_group().close()
    except ClosedError:
        return


def _exit(code: str) -> None:
    """End the process from within Tcl, through which an exception would not pass."""
    leave()
    os._exit(int(code) & 0xFF)
