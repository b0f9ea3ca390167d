"""The digits example: the same result with any number of ranks, and pictures."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
ALONE = [sys.executable]
PNG = b"\x89PNG\r\n\x1a\n"

for package in ("sklearn", "matplotlib", "tqdm"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


def on_ranks(n: int) -> list[str]:
    return [sys.executable, "-m", "rankwise", "run", "-n", str(n)]


def digits(start: list[str], folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [*start, str(SCRIPT), "--out", str(folder), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_pictures(folder: Path) -> None:
    for name in ("loss.png", "confusion.png"):
        assert (folder / name).read_bytes().startswith(PNG)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the script prints when it runs alone."""
    folder = tmp_path_factory.mktemp("one")
    lines = lines_of(digits(ALONE, folder, "--epochs", 8))
    check_pictures(folder)
    return lines


@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 7))])
def test_several_ranks_train_as_one_rank_does(tmp_path: Path, one: list[str], n: int) -> None:
    done = digits(on_ranks(n), tmp_path, "--epochs", 8)
    several = lines_of(done)
    check_pictures(tmp_path)
    assert done.stderr.count("training:   0%") == 1, "the progress bar is not rank 0's alone"
    assert "8/8" in done.stderr
    if n == 1:
        assert [line for line in several if "saved" not in line] == [line for line in one if "saved" not in line]
        return
    assert f"{n} ranks" in several[0]
    difference = re.fullmatch(r"matches the one-rank run: largest loss difference (\S+), .*", several[1])
    assert difference is not None, several
    assert float(difference[1]) < 1e-6
    assert several[2] == one[1]  # first and last loss
    assert several[-1] == one[-1]  # accuracy
    accuracy = re.fullmatch(r"test accuracy (\S+) % \(\d+ of 360\)", several[-1])
    assert accuracy is not None, several
    assert float(accuracy[1]) > 95


@pytest.mark.slow  # 718 steps
def test_batches_smaller_than_the_world(tmp_path: Path) -> None:
    lines = lines_of(digits(on_ranks(3), tmp_path, "--epochs", 1, "--batch", 2, "--hidden", 16, "--lr", 0.02))
    assert lines[1].startswith("matches the one-rank run")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gradient_is_the_slope_of_the_loss(script: ModuleType) -> None:
    rng = np.random.default_rng(3)
    network = script.Network(hidden=5)
    images, labels = rng.random((4, script.PIXELS)), rng.integers(0, script.CLASSES, 4)
    gradient, unused = np.empty_like(network.flat), np.empty_like(network.flat)
    network.loss_and_gradient(images, labels, gradient)
    for place in rng.choice(network.flat.size, 40, replace=False):
        start, step = network.flat[place], 1e-6
        network.flat[place] = start + step
        above = network.loss_and_gradient(images, labels, unused)
        network.flat[place] = start - step
        below = network.loss_and_gradient(images, labels, unused)
        network.flat[place] = start
        np.testing.assert_allclose(gradient[place], (above - below) / (2 * step), rtol=1e-5, atol=1e-8)
