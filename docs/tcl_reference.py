"""Makes the commands of docs/reference/tcl.md from their table: `python docs/tcl_reference.py` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.helptext import Commands, default_text
from rankwise.frontends.tcl.parameters import REQUIRED, Command, Parameter, Wording
from rankwise.frontends.tcl.topics import TOPICS

MANY = 3
"""A parameter that so many commands have in common is explained once, above them."""


def reference(commands: Commands) -> str:
    """The commands as Markdown, by topic."""
    shared = _shared(commands)
    lines = ["## Parameters of many commands", "", *map(_described, shared), ""]
    for topic, (what, names) in TOPICS.items():
        lines += [f"## {topic}: {what}", ""]
        lines += [line for name in names for line in _section(commands[name], shared)]
    return "\n".join(lines)


def _shared(commands: Commands) -> list[Parameter]:
    counts = Counter(parameter for command in commands.values() for parameter in command.parameters)
    return [parameter for parameter, n in counts.items() if n >= MANY and not _says_its_type(parameter)]


def _says_its_type(parameter: Parameter) -> bool:
    return parameter.help == f"the {parameter.value_type.name}"


def _described(parameter: Parameter) -> str:
    return f"- {_named(parameter)}: {parameter.help}"


def _named(parameter: Parameter) -> str:
    return f"`-{parameter.option}` ({parameter.value_type.name}{_default(parameter)})"


def _section(command: Command, shared: list[Parameter]) -> Iterator[str]:
    yield from (f"### torch::{command.name}", "", command.what, "")
    if command.forms:  # otherwise the parameters below have the order of the words
        yield from ("```text", *command.usages, "```", "")
    for parameter in command.parameters:
        short = parameter in shared or _says_its_type(parameter)
        yield f"- {_named(parameter)}" if short else _described(parameter)
    if command.parameters:
        yield ""
    yield from (f"Returns {command.returns}.", "")
    if command.modes:
        yield from (command.modes, "")
    if errors := _errors(command):
        yield from ("Errors: " + ", ".join(f"`{error}`" for error in errors) + ".", "")
    yield from ("```tcl", command.example, "```", "")


def _errors(command: Command) -> list[str]:
    """The errors of an invalid call of this command that are worded otherwise than other commands'."""
    missing = [
        command.wording.missing.format(missing=f"-{p.option}", usage=command.usages[0])
        for p in command.parameters
        if p.default is REQUIRED and command.wording.missing != Wording.missing
    ]
    complaints = [p.complaint.format(given='"..."') for p in command.parameters if p.complaint]
    return list(dict.fromkeys([*missing, *complaints, *command.errors]))


def _default(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return ""
    return ", optional" if parameter.default is None else f", `{default_text(parameter.default)}`"


if __name__ == "__main__":
    print(reference(COMMANDS))
