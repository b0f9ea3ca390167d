"""Tuning files: the thresholds that `rankwise tune` measured on a machine, and which file is in force.

A file is JSON:

    {"cpu": "Intel(R) Xeon(R) Platinum 8488C",
     "own_cores": {"ranks": 4, "date": "2026-11-22", "thresholds": {"flat_reduce": 8192, "put_all_gather": "never"}}}

A threshold is a number of bytes, or "never" for an algorithm that no size uses. Thresholds that the file does not have
keep their defaults. They are grouped by how the ranks of the host share its cores: own_cores, shared_cores,
yielded_cores. docs/reference/tuning.md describes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankwise.system import proc
from rankwise.system.tuning_folder import folder as folder

NEVER = (1 << 64) - 1
"""The threshold of an algorithm that no size uses."""

NONE = "none"
"""Given instead of a file, this means the default thresholds, even if the user has a file."""

Names = Mapping[str, Mapping[str, int]]
"""The thresholds that exist, with their defaults: {cores: {threshold: bytes}}."""


@dataclass(frozen=True)
class Measured:
    """The thresholds that one run measured, by name and in bytes. ranks: how many it ran. date: as 2026-11-22."""

    ranks: int
    date: str
    thresholds: dict[str, int]


@dataclass(frozen=True)
class TuningFile:
    """The contents of a file. cpu: the name of the CPU that was measured."""

    cpu: str
    measured: dict[str, Measured]
    """By how the ranks shared the cores."""

    def values(self) -> list[tuple[str, str, int]]:
        """Every threshold of the file: (cores, threshold, bytes)."""
        return [
            (cores, name, size) for cores, entry in self.measured.items() for name, size in entry.thresholds.items()
        ]


def cpu_name() -> str:
    """What the kernel calls this machine's CPU."""
    fields = proc.fields("/proc/cpuinfo", 4096)  # the first CPU; with many, the whole file takes long
    return fields.get("model name") or " ".join(filter(None, (os.uname().machine, fields.get("CPU part"))))


def path_of(cpu: str) -> str:
    """The tuning file of this user for this CPU; it need not exist."""
    words = "".join(letter if letter.isalnum() else " " for letter in cpu.lower()).split()
    return os.path.join(folder(), f"tuning-{'-'.join(words)}.json")


def in_force(named: str | None) -> str | None:
    """The path of the file that a group uses: `named`, else this user's file for this CPU; None if there is neither."""
    if named is not None:
        return None if named == NONE else named
    if not os.path.isdir(folder()):  # as on most machines: the CPU's name is not needed
        return None
    path = path_of(cpu_name())
    return path if os.path.lexists(path) else None


def load(path: str, names: Names, given: str = "tuning file") -> TuningFile:
    """Read a file. ValueError names the file and the entry that is wrong. given: what names the file, for the error."""
    import json  # only a process that has a file needs it

    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{given} {path}: it cannot be read: {why}") from None
    try:
        return _parsed(document, names)
    except ValueError as error:
        raise ValueError(f"{given} {path}: {error}") from None


def save(path: str, content: TuningFile) -> None:
    """Write a file, or replace it as a whole; its folder is created if necessary. Raises OSError.

    If the path is a symbolic link, the file that it refers to is replaced, and the link remains.
    """
    import json

    document: dict[str, Any] = {"cpu": content.cpu}
    for cores, entry in content.measured.items():
        sizes = {name: "never" if size == NEVER else size for name, size in entry.thresholds.items()}
        document[cores] = {"ranks": entry.ranks, "date": entry.date, "thresholds": sizes}
    path = os.path.realpath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{os.getpid()}"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")
        os.replace(partial, path)
    except BaseException:
        if os.path.lexists(partial):
            os.unlink(partial)
        raise


def _parsed(document: object, names: Names) -> TuningFile:
    entries = _entries("top level", document, ("cpu",), names)
    measured = {}
    for cores in names:
        if cores not in entries:
            continue
        entry = _entries(cores, entries[cores], ("ranks", "date", "thresholds"), ())
        given = _entries(f"{cores}.thresholds", entry["thresholds"], (), names[cores])
        measured[cores] = Measured(
            _whole(f"{cores}.ranks", entry["ranks"], 1, "a whole number of at least 1"),
            _text(f"{cores}.date", entry["date"]),
            {name: _threshold(f"{cores}.thresholds.{name}", value) for name, value in given.items()},
        )
    return TuningFile(_text("cpu", entries["cpu"]), measured)


def _entries(where: str, value: object, required: tuple[str, ...], optional: Mapping[str, object] | tuple[()]) -> Any:
    """A JSON object that has all required entries, and besides them only optional ones."""
    expected = ", ".join([*required, *optional])
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r} given, expected an object with {expected}")
    for name in value:
        if name not in required and name not in optional:
            raise ValueError(f"{where}: unknown entry {name!r}, expected {expected}")
    for name in required:
        if name not in value:
            raise ValueError(f"{where}: {name!r} is missing")
    return value


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} given, expected a string")
    return value


def _whole(where: str, value: object, least: int, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= NEVER:
        raise ValueError(f"{where}: {value!r} given, expected {expected}")
    return value


def _threshold(where: str, value: object) -> int:
    return NEVER if value == "never" else _whole(where, value, 0, "'never' or a whole number of bytes, 0 to 2**64 - 1")
