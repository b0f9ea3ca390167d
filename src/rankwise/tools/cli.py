"""The `rankwise` command: find the subcommand and run it."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

# name: (module with `main(argv) -> exit code`, imported when the command is given; what it does)
COMMANDS = {
    "run": ("rankwise.tools.run", "run a program on N ranks of this host"),
    "status": ("rankwise.tools.status", "show where every rank of a running job is"),
    "trace": ("rankwise.tools.trace", "show the operations of a finished job: which rank waited for which"),
    "doctor": ("rankwise.tools.doctor.command", "report what this machine has, and try every backend"),
    "tclsh": ("rankwise.frontends.tcl.main", "run a Tcl script, or a Tcl shell, with the torch:: commands"),
    "bench": ("rankwise.tools.bench.command", "measure the operations here, alone or next to MPI and gloo"),
}

EXAMPLES = """\
examples:
  rankwise run -n 4 train.py             run train.py on 4 ranks
  rankwise run -n 2 -m package.module    run a module, as python -m does
  rankwise run --help                    options and more examples
"""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and whose help has the same width in every terminal."""

    def __init__(self, **options: Any) -> None:
        # Without a width argparse imports shutil to ask the terminal, and that import takes time.
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=100)
        super().__init__(**{"formatter_class": formatter, "allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (by default sys.argv); returns the exit code."""
    try:
        try:
            return _command(list(sys.argv[1:] if argv is None else argv))
        finally:
            gc.freeze()  # the process ends here, so a last garbage collection would be wasted
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output is gone: end silently, as if by SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _command(words: list[str]) -> int:
    if words and words[0] in COMMANDS:
        code: int = import_module(COMMANDS[words[0]][0]).main(words[1:])
        return code
    parser = Parser(
        prog="rankwise",
        description="Collective communication between processes. A program runs on N ranks; each is a process\n"
        "that calls rankwise.init() to learn its rank.",
        epilog="commands:\n"
        + "".join(f"  {name:<10} {what}\n" for name, (_, what) in COMMANDS.items())
        + "\n"
        + EXAMPLES,
        usage="rankwise COMMAND ...",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.version:
        from importlib.metadata import version  # slow to import

        print(f"rankwise {version('rankwise')}")
    elif options.command is None:
        parser.print_help()
    else:
        parser.error(f"unknown command {options.command!r}: expected one of {', '.join(COMMANDS)}")
    return 0
