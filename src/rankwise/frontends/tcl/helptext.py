"""Texts about the commands, made from their table: help and the list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankwise.frontends.tcl.parameters import REQUIRED, Command, Parameter, camel
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.topics import TOPICS, nearest

Commands = Mapping[str, Command]
"""Commands by snake_case name."""


def find(commands: Commands, name: str) -> Command:
    """The command with this name or alias, with or without torch::. Raises ValueError if there is none."""
    unqualified = name.removeprefix("::").removeprefix("torch::")
    for command in commands.values():
        if unqualified in (command.name, command.alias):
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


def _default(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return ""
    return " (optional)" if parameter.default is None else f" (default {default_text(parameter.default)})"


def default_text(default: Any) -> str:
    if isinstance(default, np.dtype):
        return str(default.name)
    if isinstance(default, tuple):
        return f"{{{' '.join(map(str, default))}}}"
    if isinstance(default, bool):
        return str(int(default))
    return f'"{default}"' if isinstance(default, str) else str(default)
