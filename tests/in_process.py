"""The command line of `rankwise` in this process, where a test looks at what it refuses before it starts anything."""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest

from rankwise.tools import cli


def rankwise(capfd: pytest.CaptureFixture[str], *words: str) -> CompletedProcess[str]:
    """Its exit code, and what it prints."""
    capfd.readouterr()
    try:
        code = cli._command(list(words))  # main also prepares the end of the process
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    return CompletedProcess(words, code, *capfd.readouterr())
