"""`rankwise tclsh`: a Tcl shell with the torch:: commands."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import rankwise
from rankwise.contract.errors import BackendUnavailable

USAGE = """\
usage: rankwise tclsh [SCRIPT [arguments]]
       rankwise tclsh --commands | --package-path | --help

Run a Tcl script with the torch:: commands, or an interactive shell if no
script is given. Standard input that is not a terminal is run as a script. If
this Python has no Tcl, the tclsh on PATH runs the script.

options:
  --commands      list the commands
  --package-path  print the folder of the Tcl package torchtcl and of
                  libtorchtcl.so, for a stock tclsh
  -h, --help      print this

examples:
  rankwise tclsh examples/train.tcl
  rankwise run -n 4 examples/train.tcl
  TCLLIBPATH=$(rankwise tclsh --package-path) tclsh script.tcl
      for scripts that begin with: package require torchtcl
  ln -s $(rankwise tclsh --package-path)/libtorchtcl.so .
      for scripts that begin with: load ./libtorchtcl.so
"""

OPTIONS = ("-h", "--help", "--commands", "--package-path")


def main(argv: Sequence[str]) -> int:
    """Run `rankwise tclsh` with these arguments; returns the exit code."""
    words = list(argv)
    if not words or not words[0].startswith("-"):
        return _run(words)
    option = words[0]
    if len(words) > 1 or option not in OPTIONS:
        near = get_close_matches(option, OPTIONS, n=1)
        meant = f": did you mean {near[0]}?" if near and option not in OPTIONS else ""
        return _refuse(f"unknown words {' '.join(words)!r}{meant} (see rankwise tclsh --help)", 2)
    if option == "--commands":
        from rankwise.frontends.tcl.commands import COMMANDS  # imports NumPy, as the interpreter does
        from rankwise.frontends.tcl.helptext import listing

        print(listing(COMMANDS))
    elif option == "--package-path":
        folder = package_path()
        if folder is None:
            return _refuse("the Tcl package torchtcl is not installed with this rankwise; pip install it again", 1)
        print(folder)
    else:
        print(USAGE, end="")
    return 0


def package_path() -> Path | None:
    """The folder of the Tcl package and its library, which the build installs; None if it is missing."""
    # An editable installation has two folders, only one of which has the built files.
    folders = [Path(folder) / "frontends" / "tcl" / "package" for folder in rankwise.__path__]
    return next((folder for folder in folders if (folder / "pkgIndex.tcl").is_file()), None)


def _refuse(why: str, code: int) -> int:
    print(f"rankwise tclsh: error: {why}", file=sys.stderr)
    return code


def _run(words: list[str]) -> int:
    if words and not Path(words[0]).is_file():
        return _refuse(f"script not found: {words[0]}", 1)
    from rankwise.frontends.tcl.interpreter import Interpreter, TclError, leave

    try:
        interpreter = Interpreter()
    except BackendUnavailable as error:
        return _run_in_tclsh(words, error)
    except (ImportError, ValueError) as error:
        return _refuse(str(error), 1)
    if not words and sys.stdin.isatty():
        from rankwise.frontends.tcl.shell import Shell

        Shell(interpreter).run()
        interpreter.close()
        leave()
        return 0
    # As in a stock tclsh, Ctrl-C ends a script, whether it computes or waits for other ranks.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = 0
    try:
        if words:
            interpreter.source(words[0], words[1:])
        else:
            interpreter.eval(sys.stdin.read())
    except TclError as error:
        interpreter.flush()
        print(error.info, file=sys.stderr)
        code = 1
    interpreter.flush()
    interpreter.close()
    leave()
    return code


def _run_in_tclsh(words: list[str], lacking: BackendUnavailable) -> int:
    """Replace this process with the tclsh on PATH; returns the exit code if there is none."""
    tclsh, folder = shutil.which("tclsh"), package_path()
    if tclsh is not None and folder is not None:
        script = words or ([] if sys.stdin.isatty() else ["/dev/stdin"])
        environment = {**os.environ, "RANKWISE_TCL_PYTHON": sys.executable}
        os.execve(tclsh, [tclsh, str(folder / "start.tcl"), *script], environment)
    return _refuse(str(lacking), 1)
