"""The names that `import rankwise` offers, and their documentation."""

from __future__ import annotations

import ast
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise
from rankwise.group.group import Group

OPERATIONS = [
    "abort",
    "agree",
    "all_gather",
    "all_gather_object",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "batch",
    "broadcast",
    "broadcast_object",
    "close",
    "counter",
    "dup",
    "empty",
    "exscan",
    "failed",
    "gather",
    "gather_object",
    "gather_v",
    "irecv",
    "irecv_object",
    "isend",
    "isend_object",
    "lock",
    "probe",
    "recv",
    "recv_any",
    "recv_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "restore",
    "rng",
    "scan",
    "scatter",
    "scatter_object",
    "scatter_v",
    "send",
    "send_object",
    "sendrecv",
    "share",
    "shared_zeros",
    "shrink",
    "split",
    "split_local",
    "subgroup",
]
ERRORS = [
    "BackendUnavailable",
    "ClosedError",
    "CollectiveTimeout",
    "MismatchError",
    "PeerLostError",
    "RankwiseError",
    "TaskError",
    "UnsupportedError",
]
OTHERS = [
    "ANY",
    "Counter",
    "DType",
    "Group",
    "Lock",
    "Mesh",
    "Message",
    "Pool",
    "Received",
    "ReduceOp",
    "Work",
    "__version__",
    "autograd",
    "elastic",
    "get_cmake_dir",
    "get_include",
    "get_library",
    "init",
    "local",
    "overlap",
    "registered",
    "spawn",
    "testing",
    "trace",
    "wait_all",
    "wait_any",
]


def test_the_list() -> None:
    assert sorted(rankwise.__all__) == sorted(OPERATIONS + ERRORS + OTHERS)
    assert dir(rankwise) == sorted(rankwise.__all__)


def test_each_name_exists_and_is_documented() -> None:
    for name in rankwise.__all__:
        value = getattr(rankwise, name)
        assert isinstance(value, str) or value.__doc__, name


def test_the_stub_declares_them_all() -> None:
    stub = ast.parse(Path(rankwise.__file__).with_suffix(".pyi").read_text())
    declared = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared |= {
        node.target.id if isinstance(node, ast.AnnAssign) else node.targets[0].id
        for node in stub.body
        if isinstance(node, ast.AnnAssign | ast.Assign)
    }
    assert declared - {"_group"} == set(rankwise.__all__)


def test_a_missing_name() -> None:
    for name in ("nonsense", "COMM_WORLD"):
        with pytest.raises(AttributeError) as raised:
            getattr(rankwise, name)
        assert str(raised.value) == f"module 'rankwise' has no attribute {name!r}"


@pytest.mark.parametrize(
    ("where", "owner"), [("rankwise", "module 'rankwise'"), ("rankwise.init('solo')", "'Group' object")]
)
@pytest.mark.parametrize(("name", "meant"), [("Allreduce", "all_reduce"), ("allgather", "all_gather")])
def test_python_suggests_a_name(where: str, owner: str, name: str, meant: str) -> None:
    code = f"import rankwise; {where}.{name}"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert (
        ended.stderr.splitlines()[-1] == f"AttributeError: {owner} has no attribute {name!r}. Did you mean: {meant!r}?"
    )


def test_module_level_operations_are_the_groups() -> None:
    for name in OPERATIONS:
        function, method = getattr(rankwise, name), getattr(Group, name)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        assert list(inspect.signature(function).parameters.values()) == parameters
        assert function.__doc__ == method.__doc__


def test_help_shows_the_operations_with_their_parameters() -> None:
    whole, one = (pydoc.plain(pydoc.render_doc(thing)) for thing in (rankwise, rankwise.all_reduce))
    for text in (whole, one):
        assert re.search(r"all_reduce\(x: .*, op: .* = 'sum', \*, out: .* = None, async_op: .* = False\)", text)
        assert "Reduce `x` over the ranks, in place" in text


def test_classes_and_functions_say_the_name_by_which_they_are_imported() -> None:
    things = [thing for name in rankwise.__all__ if callable(thing := getattr(rankwise, name))]
    assert len(things) > 60
    for thing in things:
        assert thing.__module__ == "rankwise", thing
        assert pickle.loads(pickle.dumps(thing)) is thing
    assert repr(rankwise.Group) == "<class 'rankwise.Group'>"


def test_the_traceback_of_an_error_says_where_the_error_can_be_imported() -> None:
    code = "import rankwise; group = rankwise.init('solo'); group.close(); group.barrier()"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("rankwise.ClosedError: ")


def raises() -> None:
    raise rankwise.UnsupportedError("all_reduce", "gloo", "it has no such type")


def test_an_error_of_a_spawned_rank_is_the_public_one() -> None:
    with pytest.raises(rankwise.UnsupportedError, match=r"it has no such type$") as raised:
        rankwise.spawn(raises, 1, timeout=60)
    assert "rankwise.UnsupportedError: all_reduce" in str(raised.value.__cause__)


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, rankwise; print([m for m in ('numpy', 'torch', 'rankwise._native') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.strip() == "[]"
