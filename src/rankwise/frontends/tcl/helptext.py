"""Texts about the commands, made from their table: help, the list, the reference in docs/reference/tcl.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rankwise.frontends.tcl.parameters import REQUIRED, Command, Parameter, camel
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.topics import TOPICS, nearest

Commands = Mapping[str, Command]
"""Commands by snake_case name."""


def find(commands: Commands, name: str) -> Command:
    """The command with this name or alias, with or without torch::. Raises ValueError if there is none."""
    plain = name.removeprefix("::").removeprefix("torch::")
    for command in commands.values():
        if plain in (command.name, command.alias):
            return command
    near = nearest(name, commands)
    advice = f"Did you mean torch::{near}?" if near else "torch::help lists the commands."
    raise ValueError(f'Invalid -command parameter: "{name}". {advice}')


def command_help(session: Session, command: str) -> str:
    """What torch::help prints."""
    if command in TOPICS and command not in session.commands:
        what, names = TOPICS[command]
        return f"{command}: {what}\n\n{listing({name: session.commands[name] for name in names})}"
    if command:
        return help_of(find(session.commands, command))
    lines = ["topics:", *(f"  {topic:<12} {what}" for topic, (what, _) in TOPICS.items()), ""]
    lines += ["torch::help collectives               the commands of a topic"]
    lines += ["torch::help distributed_all_reduce    one command, with an example"]
    return "\n".join(lines)


def listing(commands: Commands) -> str:
    """Every command: its forms of syntax, one per line, and below them what it does."""
    return "\n".join(line for command in commands.values() for line in [*usage(command), f"    {command.what}"])


def usage(command: Command) -> list[str]:
    """The ways to write a call: each positional form, the named one, the alias."""
    forms = command.usages
    if command.parameters:
        forms.append(" ".join([f"torch::{command.name}", *(_named(parameter) for parameter in command.parameters)]))
    if command.alias != command.name:
        forms.append(f"torch::{command.alias}" + (" ..." if command.parameters else ""))
    return forms


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
    """The errors of an invalid call of this command, except for those that all commands have in common."""
    usage = command.usages[0]
    required = [
        command.wording.missing.format(missing=f"-{p.option}", usage=usage)
        for p in command.parameters
        if p.default is REQUIRED
    ]
    invalid = [
        p.complaint.format(given='"..."') or f'Invalid -{p.option} parameter: "...". {p.value_type.must}'
        for p in command.parameters
        if p.value_type.must
    ]
    return [*required, *invalid, *command.errors]


def _default(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return ""
    return " (optional)" if parameter.default is None else f" (default {_default_text(parameter.default)})"


def _default_column(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    return "optional" if default is None else f"`{_default_text(default)}`"


def _default_text(default: Any) -> str:
    if isinstance(default, np.dtype):
        return str(default.name)
    if isinstance(default, tuple):
        return f"{{{' '.join(map(str, default))}}}"
    if isinstance(default, bool):
        return str(int(default))
    return f'"{default}"' if isinstance(default, str) else str(default)


def contents(commands: Commands) -> str:
    """The commands by topic as Markdown: the list at the top of docs/reference/tcl.md, with links to the reference."""
    lines = []
    for topic, (what, names) in TOPICS.items():
        links = ", ".join(f"[`{name}`](#torch{name})" for name in names if name in commands)
        lines.append(f"- **{topic}** ({what}): {links}")
    return "\n".join(lines)


def reference(commands: Commands) -> str:
    """The commands as Markdown: the part of docs/reference/tcl.md that is made from the table."""
    return "\n".join(line for command in commands.values() for line in _section(command))


def _section(command: Command) -> Iterator[str]:
    yield from (f"### torch::{command.name}", "", command.what, "", "```text", *usage(command), "```", "")
    if command.parameters:
        yield from ("| parameter | type | default | |", "|---|---|---|---|")
        for parameter in command.parameters:
            default = _default_column(parameter.default)
            yield f"| `-{parameter.option}` | {parameter.value_type.name} | {default} | {parameter.help} |"
        yield ""
    yield from (f"Returns {command.returns}.", "")
    if command.modes:
        yield from (command.modes, "")
    if errors := _errors(command):
        yield from ("Errors: " + ", ".join(f"`{error}`" for error in errors) + ".", "")
    yield from ("```tcl", command.example, "```", "")
