"""The `rankwise` command: find the subcommand and run it."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module

from rankwise.contract.timeouts import TIMEOUT, is_timeout
from rankwise.tools.layout import fill, width

TYPE_CHECKING = False  # typing would take time to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

    Option = tuple[tuple[str, ...], dict[str, Any]]

# name: (module with `main(argv) -> exit code`, imported when the command is given; what it does)
COMMANDS = {
    "run": ("rankwise.tools.run", "run a program on N ranks, on this host or on several"),
    "status": ("rankwise.tools.status.command", "show where every rank of a running job is"),
    "trace": ("rankwise.tools.trace", "show the operations of a finished job: which rank waited for which"),
    "doctor": ("rankwise.tools.doctor.command", "report what this machine has, and try every backend"),
    "tclsh": ("rankwise.frontends.tcl.main", "run a Tcl script, or a Tcl shell, with the torch:: commands"),
    "bench": ("rankwise.tools.bench.command", "measure the operations here, alone or next to MPI and gloo"),
    "tune": ("rankwise.tools.tune.command", "measure which algorithm suits which size on this machine"),
}

WIDEST = 100  # columns of help; longer lines are hard to read

EXAMPLES = """\
examples:
  rankwise run -n 4 train.py             run train.py on 4 ranks
  rankwise run -n 2 -m package.module    run a module, as python -m does
  rankwise run --help                    options and more examples
"""


class Help(argparse.HelpFormatter):
    """Help as wide as the terminal, in which no option's name is divided."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return fill(text, width).splitlines()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill(text, width)


def option(*names: str, **how: Any) -> Option:
    """An argument of a Parser, as add_argument takes it."""
    return names, how


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and name the option that was probably meant.

    options: its arguments, each made by `option`.
    """

    def __init__(self, *, options: Iterable[Option] = (), **about: Any) -> None:
        # Without a width argparse imports shutil to ask the terminal, and that import takes time.
        formatter = partial(Help, width=min(width(), WIDEST))
        super().__init__(**{"formatter_class": formatter, "allow_abbrev": False, **about})
        for names, how in options:
            self.add_argument(*names, **how)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        for word in args or ():
            name = word.partition("=")[0]
            if name == "--":
                break
            if name.startswith("--") and name not in self._option_string_actions:
                self.error(f"unknown option {name}{did_you_mean(name, self._option_string_actions)}")
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def whole(expected: str, least: int = 0, most: float = float("inf")) -> Callable[[str], int]:
    """The type of an argument that is a whole number from `least` to `most`. expected: what the error calls for."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return int(text)

    return convert


def seconds(text: str) -> float:
    """The type of an argument that limits how long something may take."""
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not is_timeout(limit):
        raise argparse.ArgumentTypeError(f"expected {TIMEOUT}, got {text!r}")
    return limit


def refuse(command: str, why: str, code: int = 1) -> int:
    """Print why `rankwise COMMAND` failed; returns its exit code."""
    print(f"rankwise {command}: error: {why}", file=sys.stderr, flush=True)
    return code


def terminated(signum: int, frame: FrameType | None) -> NoReturn:
    """A handler by which SIGTERM ends the command as an exit does, so that nothing that it started outlives it."""
    sys.exit(128 + signum)


def until_stopped(
    command: str, run: Callable[[], int], refused: tuple[type[Exception], ...], stopped: str = "stopped"
) -> int:
    """The exit code of run(). refused: errors that are printed as `refuse` does. stopped: what is said after Ctrl-C."""
    signal.signal(signal.SIGTERM, terminated)
    try:
        return run()
    except refused as error:
        return refuse(command, str(error))
    except KeyboardInterrupt:
        print(f"rankwise {command}: {stopped}", file=sys.stderr, flush=True)
        return 130


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """': did you mean --watch?', to append to an error about a word; empty if no known word is like it."""
    from difflib import get_close_matches  # slow to import

    by_letters = {name.strip("-"): name for name in known}  # the dashes of options would make all of them alike
    near = get_close_matches(word.strip("-"), list(by_letters), n=1)
    return f": did you mean {by_letters[near[0]]}?" if near else ""


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
        description="Collective communication between processes. A program runs on N ranks; each is a process "
        "that calls rankwise.init() to learn its rank.",
        epilog="commands:\n"
        + "".join(f"  {name:<10} {what}\n" for name, (_, what) in COMMANDS.items())
        + "\n"
        + EXAMPLES,
        usage="rankwise COMMAND ...",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    if words and not words[0].startswith("-"):
        near = did_you_mean(words[0], COMMANDS) or f": expected one of {', '.join(COMMANDS)}"
        parser.error(f"unknown command {words[0]!r}{near}")
    options = parser.parse_args(words)
    if options.version:
        from importlib.metadata import version  # slow to import

        print(f"rankwise {version('rankwise')}")
    else:
        parser.print_help()
    return 0
