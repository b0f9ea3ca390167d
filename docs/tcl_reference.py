"""Makes the parts of docs/reference/tcl.md that follow from the table: `python docs/tcl_reference.py` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.helptext import Commands, default_text
from rankwise.frontends.tcl.parameters import REQUIRED, Command, Parameter, Wording
from rankwise.frontends.tcl.topics import TOPICS


def contents(commands: Commands) -> str:
    """The commands by topic as Markdown, with links to the reference."""
    lines = []
    for topic, (what, names) in TOPICS.items():
        links = ", ".join(f"[`{name}`](#torch{name})" for name in names if name in commands)
        lines.append(f"- **{topic}** ({what}): {links}")
    return "\n".join(lines)


def types(commands: Commands) -> str:
    """What each type of parameter must be, as a Markdown table."""
    used = sorted({(p.value_type.name, p.value_type.must) for c in commands.values() for p in c.parameters})
    rows = [f"| {name} | {must} |" for name, must in used if must]
    return "\n".join(["| type | the end of the message |", "|---|---|", *rows])


def reference(commands: Commands) -> str:
    """The commands as Markdown."""
    return "\n".join(line for command in commands.values() for line in _section(command))


def _section(command: Command) -> Iterator[str]:
    yield from (f"### torch::{command.name}", "", command.what, "", "```text", *command.usages, "```", "")
    for parameter in command.parameters:
        yield f"- `-{parameter.option}` ({parameter.value_type.name}{_default(parameter)}): {parameter.help}"
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
    print(contents(COMMANDS), types(COMMANDS), reference(COMMANDS), sep="\n\n")
