"""Every `python` and `bash` block of the site's pages runs, and every relative link of a page leads to a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snippets import ROOT, Snippet, check_commands, check_python, file_name, name, read, write_files

PAGES = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")) if "spec" not in p.parts]
TESTED_ELSEWHERE = {
    "docs/how-to/compiled.md": "tests/capi/test_page.py",
    **{
        f"docs/how-to/{name}.md": "tests/overlap/test_page.py" for name in ("overlap", "gradients", "registered-memory")
    },
    "docs/reference/tcl.md": "tests/frontends/tcl/test_docs.py",
}
SNIPPETS = [snippet for page in PAGES if page not in TESTED_ELSEWHERE for snippet in read(page)]
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]
BASH = [snippet for snippet in SNIPPETS if snippet.language == "bash"]
DOCUMENTS = [*PAGES, *(p.name for p in ROOT.glob("*.md"))]


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with the files that the snippet's page shows."""
    page = request.getfixturevalue("snippet").document
    write_files((each for each in PYTHON if each.document == page), tmp_path)
    return tmp_path


def test_the_pages_have_snippets_and_other_tests_exist() -> None:
    assert len(PYTHON) >= 5
    for page, test in TESTED_ELSEWHERE.items():
        assert page in PAGES
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "snippet",
    [
        pytest.param(s, id=name(s), marks=pytest.mark.slow if "import torch" in s.text else ())
        for s in PYTHON
        if file_name(s) is None
    ],
)
def test_python_snippet(snippet: Snippet, folder: Path) -> None:
    check_python(snippet, folder)


def test_what_three_ranks_print_is_compared_with_the_page(tmp_path: Path) -> None:
    program = "import rankwise as rw\n\nprint('rank', rw.init().rank)\n"
    check_python(Snippet("", 1, "python", program, "rank 2\nrank 0\nrank 1\n"), tmp_path)
    with pytest.raises(AssertionError):
        check_python(Snippet("", 1, "python", program, "rank 0\nrank 1\nrank 3\n"), tmp_path)


@pytest.mark.parametrize("snippet", [s for s in PYTHON if file_name(s)], ids=name)
def test_python_file_is_used_by_a_command(snippet: Snippet) -> None:
    commands = [s.text for s in SNIPPETS if s.document == snippet.document and s.language in ("bash", "console")]
    assert any(str(file_name(snippet)) in text for text in commands)


def runs_elsewhere(snippet: Snippet) -> bool:
    """Whether other tests of make test do the same.

    It starts ranks of a file that uses torch, as tests/frontends/torch does, several launchers, as
    tests/launch/test_nodes.py does, or `rankwise doctor`, as tests/tools/test_doctor.py does.
    """
    files = [str(file_name(s)) for s in PYTHON if s.document == snippet.document and "import torch" in s.text]
    return any(word in snippet.text for word in (*files, "--nnodes", "rankwise doctor"))


@pytest.mark.parametrize(
    "snippet", [pytest.param(s, id=name(s), marks=pytest.mark.slow if runs_elsewhere(s) else ()) for s in BASH]
)
def test_commands(snippet: Snippet, folder: Path) -> None:
    check_commands(snippet, folder)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_lead_to_files(document: str) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    targets = [link.partition("#")[0] for link in links if not re.match(r"\w+:|#", link)]
    assert [target for target in targets if not ((ROOT / document).parent / target).exists()] == []
