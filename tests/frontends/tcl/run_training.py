"""Trains a model on the ranks of `rankwise run` in every way that optimizer_step offers, and compares with one rank.

A program: test_training_ranks.py runs it. Every rank trains on its rows of each batch, and for comparison
in a session of its own, without other ranks, on the whole batch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.session import Session

RANK, N = int(os.environ["RANKWISE_RANK"]), int(os.environ["RANKWISE_WORLD_SIZE"])
ROWS, STEPS = 12, 5
MOMENTS = {"optimizer_sgd": 1, "optimizer_adam": 2}


def call(session: Session, command: str, *words: object) -> str:
    code, text, _ = session.answer(command, [str(word) for word in words])
    assert code == "ok", f"{command} {words}: {text}"
    return text


def error(session: Session, command: str, *words: object) -> str:
    code, text, why = session.answer(command, [str(word) for word in words])
    assert (code, why) == ("error", "RANKWISE ValueError"), f"{command} {words} gave {text}"
    return text


class Training:
    """A model, its optimizer, and a step on some rows of a batch, in one session."""

    def __init__(self, session: Session, kind: str, ranks: int) -> None:
        self.session = session
        call(session, "manual_seed", 1)
        layers = [call(session, "linear", 3, 5, 1, "float64"), call(session, "tanh")]
        layers.append(call(session, "linear", 5, 2, 0, "float64"))  # 30 parameters in all: not a multiple of 4
        self.model = call(session, "sequential", " ".join(layers))
        parameters = call(session, "model_parameters", self.model)
        # The ranks' gradients, each the mean over the rank's rows, are added up: `ranks` times the mean over all rows.
        options = (0.3 / ranks, 0.9) if kind == "optimizer_sgd" else (0.01,)
        self.optimizer = call(session, kind, parameters, *options)

    def backward(self, rows: slice, number: int) -> None:
        inputs = np.random.default_rng(number).normal(size=(ROWS, 3))
        targets = (inputs.sum(1) > 0).astype(np.int64)
        outputs = call(self.session, "model_forward", self.model, self.session.handles.add(inputs[rows]))
        loss = call(self.session, "loss_function", outputs, self.session.handles.add(targets[rows]))
        call(self.session, "optimizer_zero_grad", self.optimizer)
        call(self.session, "backward", loss)

    def gradients(self) -> str:
        return call(self.session, "model_gradients", self.model)

    def step(self, *gradients: str) -> None:
        assert call(self.session, "optimizer_step", self.optimizer, *gradients) == "OK"

    def flat(self) -> np.ndarray:
        handles = call(self.session, "model_parameters", self.model).split()
        return np.concatenate([self.session.handles.tensor(handle).reshape(-1) for handle in handles])


def train(kind: str, way: str) -> Training:
    """Train on all ranks; the parameters after each step are those of a training alone."""
    several, alone = Training(session, kind, N), Training(Session(COMMANDS), kind, 1)
    part = ROWS // N
    for number in range(STEPS):
        several.backward(slice(RANK * part, (RANK + 1) * part), number)
        if way == "shard":
            several.step(call(session, "distributed_reduce_scatter", several.gradients(), "sum"))
        else:
            several.step(call(session, "distributed_all_reduce", several.gradients(), "sum"))
        alone.backward(slice(None), number)
        alone.step()
        # Adam divides by the size of the gradient, to which it adds 1e-8.
        np.testing.assert_allclose(several.flat(), alone.flat(), rtol=1e-9 if kind == "optimizer_sgd" else 1e-4)
        everyones = session.handles.tensor(call(session, "distributed_all_gather", session.handles.add(several.flat())))
        assert (everyones == several.flat()).all(), "the ranks' parameters differ"
    return several


def state(training: Training) -> int:
    return int(call(session, "optimizer_state_bytes", training.optimizer))


def other_ways(sharded: Training, full: Training) -> None:
    """An optimizer that has stepped a shard refuses other gradients, on every rank alike, and goes on as before."""
    sharded.backward(slice(None), 0)
    before = sharded.flat()
    for gradients in ((), (sharded.gradients(),)):
        text = error(session, "optimizer_step", sharded.optimizer, *gradients)
        assert text.startswith("Invalid -gradients parameter. This optimizer keeps state for elements "), text
    full.backward(slice(None), 0)
    shard = call(session, "distributed_reduce_scatter", full.gradients(), "sum")
    assert "keeps state for elements 0 to 29 of 30" in error(session, "optimizer_step", full.optimizer, shard)
    wrong = call(session, "ones", 3, "float64")
    assert f"or {N * (-(-30 // N))} with padding" in error(session, "optimizer_step", full.optimizer, wrong)
    assert (sharded.flat() == before).all()
    sharded.step(call(session, "distributed_reduce_scatter", sharded.gradients(), "mean"))
    assert (sharded.flat() != before).any()


def own_gradients() -> None:
    """Without gradients, a rank steps alone, with its own."""
    training = Training(session, "optimizer_sgd", 1)
    training.backward(slice(RANK, RANK + 1), 0)
    training.step()
    alone = Training(Session(COMMANDS), "optimizer_sgd", 1)
    alone.backward(slice(RANK, RANK + 1), 0)
    alone.step()
    assert (training.flat() == alone.flat()).all()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    session = Session(COMMANDS)
    call(session, "distributed_init", 0, N)
    for kind, moments in MOMENTS.items():
        sharded, full = train(kind, "shard"), train(kind, "full")
        assert state(full) == 8 * 30 * moments
        assert state(sharded) == 8 * moments * (-(-30 // N)), f"{state(sharded)} bytes"
        if N > 1:
            other_ways(sharded, full)
    own_gradients()
    # A model comes from any number of ranks to any other.
    loaded = call(session, "model_load", folder / "before.pt")
    if RANK == 0:
        call(session, "model_save", loaded, folder / "after.pt")
    call(session, "distributed_barrier")
    again = Session(COMMANDS)
    module = again.handles.module(call(again, "model_load", folder / "after.pt"))
    original = session.handles.module(loaded)
    assert all((a == b).all() for a, b in zip(module.parameters(), original.parameters(), strict=True))
    session.close()
    print("all well")
