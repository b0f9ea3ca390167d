"""Every public name is documented, with an example, and the examples are right: they run on two ranks. The sections are
those that IDEs and the reference read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.testing import run_ranks

ATTRIBUTES = {
    "__version__",
    "autograd",
    "elastic",
    "overlap",
    "testing",
    "trace",
}  # no place for an example; what is in these modules has its own

METHODS_SHOWN = ("Counter", "Group", "Lock", "Mesh", "Pool")  # the classes whose methods have examples of their own


def names() -> Iterator[tuple[str, Any]]:
    """The public names, each once."""
    for name in rw.__all__:
        if name not in ATTRIBUTES and not hasattr(Group, name):  # those are the group's own, with its docstrings
            yield name, getattr(rw, name)
    for module in ("autograd", "elastic", "overlap", "trace"):
        for name in getattr(rw, module).__all__:
            yield f"{module}.{name}", getattr(getattr(rw, module), name)


def documented() -> Iterator[tuple[str, Any]]:
    """The public names and the methods of the public classes, but not what these have from Python's own classes."""
    for name, thing in names():
        yield name, thing
        for member, value in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            owner = next((kind for kind in thing.__mro__ if member in vars(kind)), object)
            ours = owner.__module__.startswith("rankwise") and not member.startswith("_")
            if ours and (callable(value) or isinstance(value, property)):
                yield f"{name}.{member}", value


def run_examples(group: Group, with_torch: bool) -> list[str]:
    import doctest

    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for name, thing in documented():
        lines = inspect.getdoc(thing) or ""
        if ("import torch" in lines) != with_torch:
            continue
        with group.dup("world") as own:
            given = {"np": np, "rw": rw, "group": own}
            test = doctest.DocTestParser().get_doctest(lines, given, name, name, 0)
            runner.run(test, out=printed.append)
    return printed


def test_every_public_name_has_an_example() -> None:
    shown = {name: "\nExample:\n    >>> " in (inspect.getdoc(thing) or "") for name, thing in documented()}
    assert [name for name, _ in names() if not shown[name]] == []
    # The methods of the other classes are shown in the class's own example.
    assert {name for name in shown if name.partition(".")[0] in METHODS_SHOWN and not shown[name]} <= {"Mesh.close"}


def test_the_arguments_that_a_docstring_describes_are_parameters() -> None:
    described = {}
    for name, thing in documented():
        for section in re.findall(r"^Args:\n((?: {4}.*\n)+)", inspect.getdoc(thing) or "", re.M):
            described[name] = re.findall(r"^ {4}\**(\w+): ", section, re.M)
            assert set(described[name]) <= set(inspect.signature(thing).parameters), name
    assert described["init"] == ["backend", "timeout", "tuning", "allow_pickle"]


def test_no_argument_is_described_outside_the_sections() -> None:
    for name, thing in documented():
        text = re.split(r"^\w+:$", inspect.getdoc(thing) or "", maxsplit=1, flags=re.M)[0]
        assert not re.search(r"(\A|[.;]\s|\n\n)[a-z_]\w*(, \w+)*:\s", text), name


@pytest.mark.parametrize("with_torch", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_examples_are_right(with_torch: bool) -> None:
    for printed in run_ranks(partial(run_examples, with_torch=with_torch), 2, backend="shm"):
        assert not printed, "".join(printed)
