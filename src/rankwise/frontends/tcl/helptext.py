"""Texts about the commands, made from their table: help, the list, the reference in docs/tcl.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rankwise.frontends.tcl.parameters import REQUIRED, Command, Parameter, camel
from rankwise.frontends.tcl.session import Session

Commands = Mapping[str, Command]
"""Commands by snake_case name."""


def find(commands: Commands, name: str) -> Command:
    """The command with this name or alias, with or without torch::. Raises ValueError if there is none."""
    plain = name.removeprefix("::").removeprefix("torch::")
    for command in commands.values():
        if plain in (command.name, command.alias):
            return command
    raise ValueError(f'Invalid -command parameter: "{name}". torch::help lists the commands.')


def command_help(session: Session, command: str) -> str:
    """What torch::help prints."""
    if command:
        return help_of(find(session.commands, command))
    return f"{listing(session.commands)}\ntorch::help COMMAND shows more about one of them."


def listing(commands: Commands) -> str:
    """Every command: its forms of syntax, one per line, and below them what it does."""
    return "\n".join(line for command in commands.values() for line in [*usage(command), f"    {command.what}"])


def usage(command: Command) -> list[str]:
    """The ways to write a call: each positional form, the named one, the alias."""
    forms = [
        " ".join([f"torch::{command.name}", *(_positional(command.parameter(name)) for name in form)])
        for form in command.positional
    ]
    if command.parameters:
        forms.append(" ".join([f"torch::{command.name}", *(_named(parameter) for parameter in command.parameters)]))
    if command.alias != command.name:
        forms.append(f"torch::{command.alias}" + (" ..." if command.parameters else ""))
    return forms


def _positional(parameter: Parameter) -> str:
    return parameter.name if parameter.default is REQUIRED else f"?{parameter.name}?"


def _named(parameter: Parameter) -> str:
    word = f"-{parameter.option} {parameter.name}"
    return word if parameter.default is REQUIRED else f"?{word}?"


def help_of(command: Command) -> str:
    """Usage, parameters, result and an example, as text."""
    lines = [command.what, "", "usage:", *(f"  {line}" for line in usage(command))]
    if command.parameters:
        lines += ["", "parameters:"]
        lines += [f"  -{camel(p.name):<12} {p.value_type.name}{_default(p)}: {p.help}" for p in command.parameters]
    lines += ["", f"returns: {command.returns}"]
    if command.modes:
        lines.append(f"modes:   {command.modes}")
    return "\n".join([*lines, "", "example:", *(f"  {line}" for line in command.example.splitlines())])


def _errors(command: Command) -> list[str]:
    """The errors of a wrong call of this command, except for those that all commands have in common."""
    required = [f"Required parameter missing: -{p.option}" for p in command.parameters if p.default is REQUIRED]
    invalid = [
        p.complaint or f'Invalid -{p.option} parameter: "...". {p.value_type.must}'
        for p in command.parameters
        if p.value_type.must
    ]
    return [*required, *invalid, *command.errors]


def _default(parameter: Parameter) -> str:
    return "" if parameter.default is REQUIRED else f" (default {_default_text(parameter.default)})"


def _default_text(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, np.dtype):
        return str(default.name)
    return f'"{default}"' if isinstance(default, str) else str(int(default))


def reference(commands: Commands) -> str:
    """The commands as Markdown: the part of docs/tcl.md that is made from the table."""
    return "\n".join(line for command in commands.values() for line in _section(command))


def _section(command: Command) -> Iterator[str]:
    yield from (f"### torch::{command.name}", "", command.what, "", "```text", *usage(command), "```", "")
    if command.parameters:
        yield from ("| parameter | type | default | |", "|---|---|---|---|")
        for parameter in command.parameters:
            default = "required" if parameter.default is REQUIRED else f"`{_default_text(parameter.default)}`"
            yield f"| `-{parameter.option}` | {parameter.value_type.name} | {default} | {parameter.help} |"
        yield ""
    yield from (f"Returns {command.returns}.", "")
    if command.modes:
        yield from (command.modes, "")
    if errors := _errors(command):
        yield from ("Errors: " + ", ".join(f"`{error}`" for error in errors) + ".", "")
    yield from ("```tcl", command.example, "```", "")
