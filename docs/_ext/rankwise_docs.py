"""What the site takes from the code when it is built: the commands' help, the environment variables, the docstrings.

- `command-help` prints what `rankwise COMMAND --help` prints, or `python -m MODULE --help`.
- `environment-variables` describes the variables that it names, one a line, as `Settings` does.

Docstrings are plain text that help() shows, with Google's sections (Args, Returns, Raises, Attributes, Example);
`readable` makes reStructuredText of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import cleandoc, signature
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective

LABEL = re.compile(r"\A([A-Z]\w+):(?=\s)")
"""A word and a colon, at the beginning of a paragraph."""

PARAMETER = re.compile(r":param (\w+):")

OPAQUE = {"Any", "Counts", "Op", "T", "object"}
"""Types whose names tell a reader nothing."""

SECTIONS = Config(napoleon_use_ivar=True)  # Attributes become a list too

MADE_BY_THE_LIBRARY = {
    "rankwise.Group",
    "rankwise.Work",
    "rankwise.group.streams.GroupStream",
    "rankwise.overlap.Bucket",
    "rankwise.overlap.DataParallel",
    "rankwise.testing.Report",
    "rankwise.trace.OperationTotals",
}
"""Classes that programs do not call, shown without parameters."""


def command_help(command: str) -> str:
    """The help of `rankwise COMMAND`, or of a `python -m MODULE`, as a terminal of 88 columns shows it."""
    words = command.split()
    module = words[2:] if words[:2] == ["python", "-m"] else ["rankwise", *words]
    environment = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "XDG_CACHE_HOME": "~/.cache"}
    done = subprocess.run(
        [sys.executable, "-m", *module, "--help"], env=environment, capture_output=True, text=True, timeout=100
    )
    if done.returncode:
        raise RuntimeError(f"{command} --help: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


class CommandHelp(SphinxDirective):
    """What a command prints for --help."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the code may have changed
        text = command_help(self.arguments[0] if self.arguments[0] != "rankwise" else "")
        return [nodes.literal_block(text, text, language="text")]


def variables() -> dict[str, str]:
    """Each variable of `Settings`, and its description."""
    from rankwise.system.settings import Settings

    found: dict[str, list[str]] = {}
    name = ""
    for line in cleandoc(Settings.__doc__ or "").splitlines():
        if begin := re.match(r"(RANKWISE_\w+) +(.*)", line):
            name = begin[1]
            found[name] = [begin[2]]
        elif name and line.startswith("    "):
            found[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


class EnvironmentVariables(SphinxDirective):
    """The named variables, each with its description. A page that it names becomes a link."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        known = variables()
        lines: list[str] = []
        for name in (line.strip() for line in self.content if line.strip()):
            text = re.sub(r"docs/([\w/-]+\.md)", r"[](/\1)", known[name])
            if not re.match(r"\w+: ", text):  # that would be a value
                text = text[0].upper() + text[1:]
            lines += [f":::{{envvar}} {name}", text.rstrip(".") + ".", ":::", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def readable(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring: its sections become lists, in which parameters have their types, indented
    programs literal blocks, and a word and a colon that begin a paragraph bold.
    """
    # Without the name: for a property's, napoleon would take what is before a colon for a type.
    listed = GoogleDocstring(lines, SECTIONS, app, what, obj=thing).lines()
    marked: list[str] = []
    for paragraph in "\n".join(typed(listed, thing)).split("\n\n"):
        if not paragraph.lstrip().startswith(">>>"):
            indented = paragraph.startswith("    ")
            if indented and not (marked and marked[-1].startswith("    ")):
                marked.append("::")
            elif not indented:
                paragraph = re.sub(
                    r"`[^`]*`|(?<!\\)\*", lambda found: "\\*" if found[0] == "*" else found[0], paragraph
                )
                paragraph = LABEL.sub(r"**\1**:", paragraph)
                paragraph = re.sub(r"docs/([\w/-]+)\.md", r":doc:`/\1`", paragraph)
        marked.append(paragraph)
    lines[:] = "\n\n".join(marked).split("\n")


def typed(lines: list[str], thing: Any) -> Iterator[str]:
    """The lines, and before that of each parameter one with its type, as the annotation has it."""
    for line in lines:
        if found := PARAMETER.match(line):
            annotation = signature(thing).parameters[found[1]].annotation
            if not OPAQUE & set(annotation.split(" | ")):
                yield f":type {found[1]}: {annotation}"
        yield line


def without_parameters(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, None] | None:
    return ("", None) if name in MADE_BY_THE_LIBRARY else None


def with_downloads(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to the measurements, which are not pages of the site: there the site offers the file."""
    source[0] = re.sub(r"\]\(((?:\.\./)+benchmarks/results/[\w-]+\.md)(?:#[\w-]+)?\)", r"](path:\1)", source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-help", CommandHelp)
    app.add_directive("environment-variables", EnvironmentVariables)
    app.connect("autodoc-process-docstring", readable)
    app.connect("autodoc-process-signature", without_parameters)
    app.connect("source-read", with_downloads)
    return {"version": "1", "parallel_read_safe": True, "env_version": 1}
