"""Training on real ranks: run_training.py does the checking, on every rank. And the example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.main import package_path
from rankwise.frontends.tcl.session import Session

torch: Any = pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("run_training.py")
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "train.tcl"
PAGE = ROOT / "docs" / "spec" / "distributed_reduce_scatter.md"
EPOCHS = 12
PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10
RUN = [sys.executable, "-m", "rankwise", "run"]


@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4))])
def test_every_way_to_step_trains_as_one_rank_does(n: int, tmp_path: Path) -> None:
    session = Session(COMMANDS)
    model = session.answer("linear", ["7", "3"])[1]
    assert session.answer("model_save", [model, str(tmp_path / "before.pt")])[0] == "ok"
    command = [*RUN, "-n", str(n), str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "all well\n" * n
    assert session.answer("model_load", [model, str(tmp_path / "after.pt")])[0] == "ok"


# ---- examples/train.tcl ----


def losses_of_torch(folder: Path) -> list[float]:
    """The losses of the example's training by torch alone, in this process."""
    images, labels = (torch.from_numpy(np.load(folder / f"train-{name}.npy")[:1440]) for name in ("images", "labels"))
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(64, 64, dtype=torch.float64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10, dtype=torch.float64),
    )
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(EPOCHS):
        for start in range(0, 1440, 60):
            rows = slice(start, start + 60)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.slow  # the page's step is in run_pages.py too, and run_training.py trains in every way
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("host", "n"), [("rankwise", 1), ("rankwise", 2), ("rankwise", 3), ("rankwise", 4), ("stock", 1), ("stock", 2)]
)
def test_the_example_trains_as_one_rank_of_torch_does(
    host: str, n: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("sklearn")
    words = [str(EXAMPLE), str(tmp_path), str(EPOCHS)]
    environment = {**os.environ, "TCLLIBPATH": str(package_path()), "RANKWISE_TCL_PYTHON": sys.executable}
    if host == "rankwise":
        request.getfixturevalue("either_host")
        command = [sys.executable, "-m", "rankwise", "tclsh", *words] if n == 1 else [*RUN, "-n", str(n), *words]
    else:
        if shutil.which("tclsh") is None:
            pytest.skip("there is no tclsh; apt install tcl")
        command = ["tclsh", *words] if n == 1 else [*RUN, "-n", str(n), "--", "tclsh", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"1440 images to train on, 357 to test, {n} rank{'s'[: n > 1]}"
    for epoch, line in enumerate(lines[1 : EPOCHS + 1], 1):
        assert re.fullmatch(rf"epoch +{epoch} of {EPOCHS}: loss \d\.\d+, test accuracy \d+\.\d+ %", line), line
    losses = [float(word) for word in (tmp_path / f"losses-{n}.txt").read_text().split()]
    np.testing.assert_allclose(losses, losses_of_torch(tmp_path), rtol=1e-9)
    shard = 8 * -(-PARAMETERS // n)
    assert lines[-2] == f"optimizer state: {', '.join([str(shard)] * n)} bytes"
    accuracy = re.fullmatch(r"test accuracy (\d+\.\d+) % \(\d+ of 357\)", lines[-1])
    assert accuracy is not None
    assert float(accuracy[1]) >= 97


def test_the_example_has_the_step_of_the_page() -> None:
    step = re.search(r"^proc distributed_training_step .*?^}$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert step is not None
    assert step[0] in EXAMPLE.read_text()
