"""The fuzzers of code in Python read their corpora, and some random bytes. `make test-all PART=fuzz` guides them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native/tests/fuzz/corpus"


def inputs(name: str) -> list[Path]:
    """A target's, and those of the native fuzzer that reads the same."""
    shared = [*(NATIVE / "pickle_fuzz").iterdir()] if name == "pickles" else []
    return sorted([*(HERE / "corpus" / name).iterdir(), *shared])


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    found = inputs(name)
    assert found, f"{name} has no corpus"
    for path in found:
        try:
            TARGETS[name](path.read_bytes())
        except BaseException as error:
            raise AssertionError(f"{name} fails on {path}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_random_bytes(name: str) -> None:
    source = random.Random(1)
    for _ in range(50):
        TARGETS[name](source.randbytes(source.randrange(200)))
