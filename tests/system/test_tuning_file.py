"""Tuning files: which one is in force, what they contain, and the errors that name the file and the entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankwise.system import tuning_file
from rankwise.system.tuning_file import NEVER, Measured, TuningFile, in_force, load, path_of, save

NAMES = {"own_cores": {"flat_reduce": 16384, "put_all_gather": 1 << 20}, "shared_cores": {"flat_reduce": 16384}}
RIGHT: dict[str, Any] = {
    "cpu": "A",
    "own_cores": {"ranks": 4, "date": "2026-11-22", "thresholds": {"flat_reduce": 0, "put_all_gather": "never"}},
}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "tuning.json"
    content = TuningFile("A", {"own_cores": Measured(4, "2026-11-22", {"flat_reduce": 0, "put_all_gather": NEVER})})
    for _ in range(2):  # the second replaces the first
        save(str(path), content)
        assert json.loads(path.read_text()) == RIGHT
    assert [one.name for one in path.parent.iterdir()] == ["tuning.json"]
    assert load(str(path), NAMES) == content
    assert content.values() == [("own_cores", "flat_reduce", 0), ("own_cores", "put_all_gather", NEVER)]


def own(**changes: object) -> dict[str, Any]:
    return {**RIGHT, "own_cores": {**RIGHT["own_cores"], **changes}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "top level: [] given, expected an object with cpu, own_cores, shared_cores"),
        ({}, "top level: 'cpu' is missing"),
        ({"cpu": 3}, "cpu: 3 given, expected a string"),
        ({**RIGHT, "cores": {}}, "top level: unknown entry 'cores', expected cpu, own_cores, shared_cores"),
        ({**RIGHT, "own_cores": 4}, "own_cores: 4 given, expected an object with ranks, date, thresholds"),
        (own(note=""), "own_cores: unknown entry 'note', expected ranks, date, thresholds"),
        (own(ranks=0), "own_cores.ranks: 0 given, expected a whole number of at least 1"),
        (own(ranks=True), "own_cores.ranks: True given, expected a whole number of at least 1"),
        (own(date=None), "own_cores.date: None given, expected a string"),
        (
            own(thresholds={"flat": 1}),
            "own_cores.thresholds: unknown entry 'flat', expected flat_reduce, put_all_gather",
        ),
        *(
            (
                own(thresholds={"flat_reduce": value}),
                f"own_cores.thresholds.flat_reduce: {value!r} given, "
                "expected 'never' or a whole number of bytes, 0 to 2**64 - 1",
            )
            for value in (-1, 1.5, "16K", None, 1 << 64)
        ),
    ],
)
def test_errors_name_the_file_and_the_entry(tmp_path: Path, document: object, words: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"^tuning file ") as caught:
        load(str(path), NAMES)
    assert str(caught.value) == f"tuning file {path}: {words}"


@pytest.mark.parametrize("content", [b"{", b"\xff", None])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^tuning file {path}: it cannot be read: "):
        load(str(path), NAMES)


def test_which_file_is_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert in_force(None) is None
    monkeypatch.setattr(tuning_file, "cpu_name", lambda: "AMD EPYC(tm) 9754, 128-Core")
    path = tmp_path / "rankwise" / "tuning-amd-epyc-tm-9754-128-core.json"
    path.parent.mkdir()
    assert in_force(None) is None  # only other CPUs' files
    assert path_of("AMD EPYC(tm) 9754, 128-Core") == str(path)
    path.symlink_to("nowhere")  # a file that is there and cannot be read is an error, not the defaults
    assert in_force(None) == str(path)
    assert in_force("other.json") == "other.json"
    assert in_force("none") is None


def test_without_the_variable_the_folder_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    assert tuning_file.folder() == "/home/u/.config/rankwise"


def test_the_cpu_has_a_name() -> None:
    assert tuning_file.cpu_name()


def test_a_symbolic_link_remains(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "shared" / "file.json")
    for size in (1, 2):
        content = TuningFile("A", {"own_cores": Measured(4, "2026-11-22", {"flat_reduce": size})})
        save(str(tmp_path / "link.json"), content)
        assert (tmp_path / "link.json").is_symlink()
        assert load(str(tmp_path / "shared" / "file.json"), NAMES) == content
