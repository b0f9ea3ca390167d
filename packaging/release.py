"""Makes the tag of a release from CHANGELOG.md: python packaging/release.py date | check | notes | tag [TAG]

date    writes today's date into CHANGELOG.md, in the section of pyproject.toml's version, and into CITATION.cff
check   says what is still missing, and then fails
notes   checks, and prints the release notes: the version's section of CHANGELOG.md
tag     checks, and makes the annotated tag of the last commit, with the notes as its message; it pushes nothing

With TAG, it also fails if the version's tag is not called that.

CONTRIBUTING.md says what comes before and after.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = ".example/"  # in the URL of a repository that is not public yet


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def field(file: str, name: str, mark: str) -> str:
    """The value of the first line that begins with the field's name."""
    found = re.search(rf'^{name}{mark} *"?([^"\n]+)"?', read(file), re.MULTILINE)
    return found[1] if found else ""


def version() -> str:
    return field("pyproject.toml", "version", " =")


def repository() -> str:
    return field("pyproject.toml", "Repository", " =")


def section() -> tuple[str, str]:
    """What CHANGELOG.md says after the version in the heading, and the text below that."""
    found = re.search(
        rf"^## {re.escape(version())}, ([^\n]+)\n+(.*?)(?=^## |\Z)", read("CHANGELOG.md"), re.MULTILINE | re.DOTALL
    )
    return (found[1], found[2]) if found else ("", "")


def missing() -> list[str]:
    """What keeps the version from being released."""
    when, text = section()
    wrong = []
    if not text:
        wrong.append(f"CHANGELOG.md has no section on {version()}")
    elif when != field("CITATION.cff", "date-released", ":"):
        wrong.append(
            f"CHANGELOG.md dates {version()} {when}, and CITATION.cff has another date."
            " `python packaging/release.py date` writes today's into both"
        )
    if field("CITATION.cff", "version", ":") != version():
        wrong.append(f"CITATION.cff does not name version {version()}")
    if field("CITATION.cff", "repository-code", ":") != repository():
        wrong.append("CITATION.cff and pyproject.toml name different repositories")
    if PLACEHOLDER in repository():
        wrong.append(f"pyproject.toml and CITATION.cff have a placeholder for the repository: {repository()}")
    return wrong


def write_date() -> None:
    today = datetime.date.today().isoformat()
    for file, pattern in (
        ("CHANGELOG.md", rf"^(## {re.escape(version())}, ).*$"),
        ("CITATION.cff", r"^(date-released: ).*$"),
    ):
        text, n = re.subn(pattern, rf"\g<1>{today}", read(file), flags=re.MULTILINE)
        if n != 1:
            sys.exit(f"{file}: no place for the date found")
        (ROOT / file).write_text(text, encoding="utf-8")


def make_tag(notes: str) -> None:
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True)
    if changes.stdout:
        sys.exit(f"not committed:\n{changes.stdout}")
    message = f"rankwise {version()}\n\n{notes}"
    command = ["git", "tag", "--annotate", "--cleanup=verbatim", "--file=-", f"v{version()}"]
    subprocess.run(command, cwd=ROOT, input=message, text=True, check=True)
    print(f"v{version()} is made; `git push origin v{version()}` publishes it")


def main() -> None:
    match sys.argv[1:]:
        case ["date"]:
            write_date()
        case ["check" | "notes" | "tag" as command, *tag]:
            wrong = missing()
            if tag and tag != [f"v{version()}"]:
                wrong.append(f"{tag[0]} is not the tag of version {version()}")
            if wrong:
                sys.exit("\n".join(wrong))
            if command == "notes":
                print(section()[1], end="")
            if command == "tag":
                make_tag(section()[1])
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
