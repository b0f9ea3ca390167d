"""Files are not written through symbolic links that others may have put there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankwise._native import Segment
from rankwise.frontends.watch.trace import write_at_end
from rankwise.system import files


def write_log(path: Path) -> None:
    with open(path, "ab", opener=files.no_link) as file:
        file.write(b"text")


def write_trace(path: Path) -> None:
    write_at_end(Segment.create(1), path)


@pytest.mark.parametrize("write", [write_log, write_trace])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "link").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "link")
    assert (tmp_path / "precious").read_text() == "kept"


def test_an_own_file_is_emptied_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a long text")
    with open(path, "w", opener=files.own) as file:
        file.write("short")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("short", 0o600)
