"""A page as a real browser shows it, for tests of what rankwise writes as HTML."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ABSENT = "there is no Chromium; apt install chromium"
_QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")


def shown(address: str, profile: Path) -> str:
    """The page's DOM, as HTML, after five seconds of its own time. profile: a folder for the browser's own files."""
    assert CHROMIUM is not None
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *_QUIET, f"--user-data-dir={profile}"]
    done = subprocess.run(
        [*browser, "--virtual-time-budget=5000", "--dump-dom", address], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
