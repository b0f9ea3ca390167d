"""Makes the parts of docs/reference/tcl.md that follow from the table: `python docs/tcl_reference.py` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.helptext import Commands, default_text, usage
from rankwise.frontends.tcl.parameters import REQUIRED, Command
from rankwise.frontends.tcl.topics import TOPICS


def contents(commands: Commands) -> str:
    """The commands by topic as Markdown, with links to the reference."""
    lines = []
    for topic, (what, names) in TOPICS.items():
        links = ", ".join(f"[`{name}`](#torch{name})" for name in names if name in commands)
        lines.append(f"- **{topic}** ({what}): {links}")
    return "\n".join(lines)


def reference(commands: Commands) -> str:
    """The commands as Markdown."""
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


def _default_column(default: Any) -> str:
    if default is REQUIRED:
        return "required"
    return "optional" if default is None else f"`{default_text(default)}`"


if __name__ == "__main__":
    print(contents(COMMANDS), reference(COMMANDS), sep="\n\n")
