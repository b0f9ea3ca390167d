"""The Tcl side of the commands, which is the same in every interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.parameters import Command

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
