"""What is packaged, and for which systems."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def configured(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What CMake says of the core with these variables."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("there is no cmake; pip install cmake")
    command = [cmake, "-S", str(ROOT), "-B", str(folder / "build"), "-DRANKWISE_PYTHON=OFF"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **variables})


@pytest.mark.parametrize("library", ["glibc", "pretended", "musl"])
def test_another_c_library_than_glibc_is_refused(library: str, tmp_path: Path) -> None:
    variables = {}
    if library == "pretended":
        (tmp_path / "features.h").touch()  # with which glibc says that it is glibc
        variables["CFLAGS"] = f"-I{tmp_path}"
    elif library == "musl":
        if shutil.which("musl-gcc") is None:
            pytest.skip("there is no musl-gcc; apt install musl-tools")
        variables["CC"] = "musl-gcc"
    done = configured(tmp_path, **variables)
    if library == "glibc":
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        said = " ".join(done.stderr.split())
        assert "rankwise needs Linux with glibc, and " in said
        assert "Use a system with glibc" in said


def load(name: str) -> ModuleType:
    """A program of packaging/ as a module."""
    spec = spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_package_index_shows_absolute_links() -> None:
    text = (ROOT / "README.md").read_text()
    shown = load("readme").absolute(text, {"Repository": "https://host/us"}, "1.2.3")
    links = re.findall(r"(!?)\[[^][]*\]\(([^)]*)\)", shown)
    assert len(links) == len(re.findall(r"\]\(", text)) > 10
    assert {kind for kind, _ in links} == {"!", ""}
    for kind, link in links:
        inside = re.fullmatch(rf"https://host/us/{'raw' if kind else 'blob'}/v1\.2\.3/([^#]+)(#.*)?", link)
        assert (ROOT / inside[1]).is_file() if inside else re.match(r"https://(?!host/)", link), link
    assert re.sub(r"https://host/us/(blob|raw)/v1\.2\.3/", "", shown) == text


def test_the_repository_and_the_version_are_the_same_everywhere() -> None:
    release = load("release")
    when, notes = release.section()
    assert len(notes) > 1000
    assert when == "not yet released" or datetime.date.fromisoformat(when)
    assert datetime.date.fromisoformat(release.field("CITATION.cff", "date-released", ":"))
    dated = {"CHANGELOG.md", "placeholder"}  # what only the maintainers can say
    assert [line for line in release.missing() if not any(word in line for word in dated)] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that a release reads, with a public URL."""
    for file in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "packaging/release.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        text = (ROOT / file).read_text()
        if not file.endswith(".py"):
            text = re.sub(r"https://[^\s\"]+/rankwise(?=[\s\"])", "https://host.org/rankwise", text)
        (tmp_path / file).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "Ann")
    git(tmp_path, "config", "user.email", "ann@host.org")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "all")


def release(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "packaging" / "release.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_release_gets_a_date_notes_and_a_tag(checkout: Path) -> None:
    days = [datetime.date.today().isoformat()]
    assert release(checkout, "date").returncode == 0
    days.append(datetime.date.today().isoformat())
    today = re.findall(r"^date-released: (.*)$", (checkout / "CITATION.cff").read_text(), re.MULTILINE)[0]
    assert today in days
    assert f"\n## 0.1.0, {today}\n" in (checkout / "CHANGELOG.md").read_text()
    assert release(checkout, "check", "v0.1.1").stderr == "v0.1.1 is not the tag of version 0.1.0\n"
    done = release(checkout, "tag")
    assert done.returncode == 1, "the date is not committed"
    assert "not committed" in done.stderr
    commit(checkout)
    notes = release(checkout, "notes", "v0.1.0").stdout
    assert notes.startswith("- Collectives, messages")
    assert "\n## " not in notes
    assert "v0.1.0 is made" in release(checkout, "tag").stdout
    assert git(checkout, "for-each-ref", "--format=%(objecttype) %(contents)", "refs/tags/v0.1.0").strip() == (
        f"tag rankwise 0.1.0\n\n{notes}".strip()
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "https://host.org", "https://rankwise.example", "name different repositories"),
        ("pyproject.toml", "https://host.org", "https://rankwise.example", "have a placeholder"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "CHANGELOG.md has no section on 0.2.0"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "CITATION.cff does not name version 0.2.0"),
        ("CITATION.cff", "date-released: 2", "date-released: 1", "CITATION.cff has another date"),
    ],
)
def test_what_is_missing_keeps_a_release_back(file: str, old: str, new: str, said: str, checkout: Path) -> None:
    assert release(checkout, "date").returncode == 0
    assert release(checkout, "check").returncode == 0
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new))
    for command in ("check", "notes", "tag"):
        done = release(checkout, command)
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr


def test_the_actions_are_pinned() -> None:
    """A tag may move to other code; the comment is for whoever reads, and updates, the hash."""
    for file in (ROOT / ".github" / "workflows").iterdir():
        uses = re.findall(r"uses: (.*)", file.read_text())
        assert uses
        assert [use for use in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []
