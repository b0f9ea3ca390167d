"""The interactive shell: a prompt with history, and completion of commands, options and variables."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.helptext import find
from rankwise.frontends.tcl.interpreter import Interpreter, TclError

PROMPT, CONTINUED = "% ", "> "
HISTORY = "~/.rankwise_tclsh_history"
HISTORY_LINES = 1000
_BREAKS = ' \t\n[]{};"$'


class Shell:
    """Reads commands from the terminal and runs them in `interpreter` until `exit` or the end of input."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        interpreter.set("tcl_interactive", "1")

    def run(self) -> None:
        print("torch::help lists the topics, Tab completes them, exit or Ctrl-D ends.")
        # tkinter's input hook would wake up 50 times a second at the prompt and delay Ctrl-C until the next key.
        ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyOS_InputHook").value = None
        readline = _readline()
        history = Path(os.path.expanduser(HISTORY))
        if readline is not None:
            readline.set_completer_delims(_BREAKS)
            readline.set_completer(self._completer(readline))
            readline.parse_and_bind("tab: complete")
            readline.set_history_length(HISTORY_LINES)
            if history.is_file():
                readline.read_history_file(history)
        while (script := self._read()) is not None:
            if readline is not None:
                readline.write_history_file(history)  # now, as `exit` does not return
            self._evaluate(script)

    def _read(self) -> str | None:
        """The next complete command; None at the end of the input."""
        script = ""
        while True:
            try:
                script += input(CONTINUED if script else PROMPT) + "\n"
            except KeyboardInterrupt:
                print()
                script = ""
                continue
            except EOFError:
                print()
                return None
            if self._interpreter.is_complete(script):
                return script

    def _evaluate(self, script: str) -> None:
        # While Tcl runs a command, no Python signal handler can run, so Ctrl-C must end the shell.
        handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            result = self._interpreter.eval(script)
            self._interpreter.flush()
            if result:
                print(result)
        except TclError as error:
            self._interpreter.flush()
            print(error, file=sys.stderr)
        finally:
            signal.signal(signal.SIGINT, handler)

    def _completer(self, readline: ModuleType) -> object:
        completions: list[str] = []

        def complete(text: str, state: int) -> str | None:
            if state == 0:
                before = readline.get_line_buffer()[: readline.get_begidx()]
                completions[:] = self.completions(before, text)
            return completions[state] if state < len(completions) else None

        return complete

    def completions(self, before: str, text: str) -> list[str]:
        """The completions of `text`, the last word of a line that begins with `before`."""
        if before.endswith("$"):
            return sorted(self._interpreter.eval(f"info globals {{{text}*}}").split())
        command = before.replace("{", "[").replace(";", "[").rpartition("[")[2].split()
        if not command:
            return sorted({name for name in self._commands(text) if name.startswith(text)})
        if text.startswith("-"):
            try:
                options = [f"-{parameter.option}" for parameter in find(COMMANDS, command[0]).parameters]
            except ValueError:
                return []
            return [f"{option} " for option in options if option.startswith(text) and option not in command]
        return sorted(handle for handle in self._interpreter.session.handles.names() if handle.startswith(text))

    def _commands(self, text: str) -> list[str]:
        torch = [f"torch::{name} " for command in COMMANDS.values() for name in (command.name, command.alias)]
        if "::" in text:
            return torch
        return [name if name.endswith("::") else f"{name} " for name in self._interpreter.names(f"{text}*")]


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:  # a Python built without it: a plain prompt
        return None
    return readline
