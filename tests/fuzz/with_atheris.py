"""Runs a fuzzer of targets.py, guided by coverage: python with_atheris.py NAME [OPTION of libFuzzer | FOLDER]..."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fuzz.targets import TARGETS

GUIDES = "rankwise", "fuzz", "pickle", "json"
"""The packages whose code guides the fuzzer. atheris's own hook does not see packages that are installed in place."""


def functions(owner: object, module: str) -> Iterator[FunctionType]:
    """Those that are defined in this module, and their classes' methods."""
    for value in list(vars(owner).values()):
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if getattr(function, "__module__", None) != module:
            continue
        if isinstance(function, FunctionType):
            yield function
        elif isinstance(value, type) and value is not owner:
            yield from functions(value, module)


for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in GUIDES:
        for function in functions(module, name):
            atheris.instrument_func(function)
target, *options = sys.argv[1:]
atheris.Setup([sys.argv[0], *options], TARGETS[target])
atheris.Fuzz()
