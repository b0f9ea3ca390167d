"""The encoding of plain data: round trips, refusals, and errors for garbage."""

from __future__ import annotations

import math
import pickle
import sys
from collections import OrderedDict, namedtuple
from contextlib import suppress
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankwise.group import codec

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.unicode_string_dtypes(max_len=4),
    hnp.byte_string_dtypes(max_len=4),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.binary(), st.text(),
    st.binary().map(bytearray), st.integers(-(2**300), 2**300),
    hnp.array_shapes(max_dims=1).map(lambda shape: np.arange(float(shape[0]))[-1]),
)  # fmt: skip
keys = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary()),
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
values = st.recursive(
    st.one_of(atoms, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
    ),
    max_leaves=12,
)


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other)
    elif isinstance(want, dict):
        same(list(got.items()), list(want.items()))
    elif isinstance(want, float | complex):
        assert str(got) == str(want)  # NaN and the signs of zero
    else:
        assert got == want


def received(parts: list[Any]) -> list[Any]:
    """As another rank gets them: in memory of its own."""
    return [part.copy() for part in parts]


@settings(deadline=None, max_examples=200)
@given(values)
def test_values_survive_a_round_trip(value: Any) -> None:
    same(codec.decode(received(codec.encode(value))), value)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_garbage_is_a_value_error_or_plain_data(data: bytes) -> None:
    try:
        value = codec.decode([np.frombuffer(bytearray(data), np.uint8)])
    except ValueError:
        return
    same(codec.decode(received(codec.encode(value))), value)


@settings(deadline=None, max_examples=200)
@given(values, st.data())
def test_damage_is_a_value_error_or_plain_data(value: Any, data: st.DataObject) -> None:
    parts = received(codec.encode(value))
    stream = bytearray(parts[0].tobytes())
    if data.draw(st.booleans()):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    else:
        del stream[data.draw(st.integers(0, len(stream) - 1)) :]
    with suppress(ValueError):
        codec.decode([np.frombuffer(stream, np.uint8), *parts[1:]])


@pytest.mark.parametrize("data", [b"", b"a", b"a\0", b"\0", b"\0a\0\0"])
def test_numpy_text_keeps_its_trailing_nuls(data: bytes) -> None:
    for value in (np.bytes_(data), np.str_(data.decode())):
        got = codec.decode(received(codec.encode([value])))[0]
        assert type(got) is type(value)
        assert len(got) == len(data)
        assert got == value  # compared as bytes and str, NULs included


def test_large_arrays_are_sent_separately_and_small_ones_in_the_stream() -> None:
    large, small = np.arange(1200.0), np.arange(10)
    parts = codec.encode({"a": large, "b": [small, large[::2]]})
    assert [part.size for part in parts[1:]] == [9600, 4800]
    assert np.shares_memory(parts[1], large), "no copy of what is contiguous"
    assert parts[0].size < 300
    memory = received(parts)
    got = codec.decode(memory)
    assert np.shares_memory(got["a"], memory[1]), "no copy of what was received"
    same(got, {"a": large, "b": [small, large[::2]]})
    for array in (got["a"], got["b"][0]):
        array += 1  # all are writable


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_types_of_ml_dtypes(name: str) -> None:
    kind = getattr(pytest.importorskip("ml_dtypes"), name)
    for value in (np.arange(5).astype(kind), np.zeros((70, 100), kind), kind(3)):
        same(codec.decode(received(codec.encode(value))), value)


Pair = namedtuple("Pair", "a b")


class Colour(IntEnum):
    RED = 1


class Own:
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Own(), "test_codec.Own"),
        ([1, {"a": Own}], "type"),
        (Pair(1, 2), "Pair"),
        (Colour.RED, "Colour"),
        (OrderedDict(), "OrderedDict"),
        (len, "builtin_function_or_method"),
        (range(3), "range"),
        (np.array([None]), "arrays of dtype object"),
        (np.zeros(2, "i4,f4"), "arrays of dtype"),
        (np.ma.zeros(2), "MaskedArray"),
    ],
)
def test_a_value_that_is_not_plain_data_is_named(value: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^obj: .*{name}.*allow_pickle=True"):
        codec.encode(value)


def test_depth() -> None:
    value: list[Any] = []
    for _ in range(codec.MAX_DEPTH):
        value = [value]
    same(codec.decode(codec.encode(value)), value)
    with pytest.raises(ValueError, match=r"^obj: nested deeper than 100 levels, or it contains itself$"):
        codec.encode([value])
    value = []
    value.append(value)
    with pytest.raises(ValueError, match=r"^obj: nested deeper"):
        codec.encode(value)
    bomb = b"l" + (1).to_bytes(8, "little")
    with pytest.raises(ValueError, match=r"^encoded object: nested deeper"):
        codec.decode([np.frombuffer(bomb * 10_000, np.uint8)])


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"l" + b"\xff" * 8,
        b"s" + b"\xff" * 8 + b"abc",
        b"NN",
        b"e" + (1).to_bytes(8, "little") + b"l" + (0).to_bytes(8, "little"),
        b"d" + (1).to_bytes(8, "little") + b"l" + (0).to_bytes(8, "little") + b"N",
        b"a" + (3).to_bytes(8, "little") + b"|O8" + (0).to_bytes(8, "little") + b"h" + b"\0" * 8,
        b"a" + (3).to_bytes(8, "little") + b"<f8" + (1).to_bytes(8, "little") + (2**62).to_bytes(8, "little") + b"h",
        b"a" + (3).to_bytes(8, "little") + b"<f8" + (0).to_bytes(8, "little") + b"p" + (1).to_bytes(8, "little"),
        b"a" + (3).to_bytes(8, "little") + b"<f8" + (99).to_bytes(8, "little"),
        b"q\x63" + (0).to_bytes(8, "little") + b"h",
        b"q\x01" + (1).to_bytes(8, "little") + (2**62).to_bytes(8, "little") + b"h",
        pickle.dumps(math.pi),
    ],
)
def test_broken_streams(stream: bytes) -> None:
    with pytest.raises(ValueError, match=r"^encoded object: "):
        codec.decode([np.frombuffer(bytearray(stream), np.uint8)] if stream else [np.empty(0, np.uint8)])


def test_a_tensor_for_a_rank_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankwise.arrays import torch as tensors

    monkeypatch.setitem(sys.modules, "torch", None)  # `import torch` fails
    monkeypatch.setattr(tensors, "_to_torch", tensors._to_torch.__wrapped__)  # which may have it already
    with pytest.raises(ValueError, match=r"^encoded object: a torch tensor, but this rank has no torch: pip install"):
        codec.decode([np.frombuffer(bytearray(b"q\x01"), np.uint8)])


def test_tensors_of_every_dtype() -> None:
    torch = pytest.importorskip("torch", reason="its tensors are tested")
    from rankwise.arrays.torch import dtypes

    for dtype in dtypes():
        for shape in ((), (0, 3), (5,), (3, 2048)):
            want = torch.ones(shape).to(dtype)
            got = codec.decode([part.copy() for part in codec.encode({"w": want})])["w"]
            assert (type(got), got.dtype, got.shape) == (torch.Tensor, dtype, want.shape)
            assert got.tolist() == want.tolist()
            got.zero_()  # its memory is its own
    assert torch.bfloat16 in dtypes()


def test_tensors_that_are_not_contiguous_or_require_grad() -> None:
    torch = pytest.importorskip("torch", reason="its tensors are tested")
    columns = torch.arange(6000.0).view(2, 3000).t()
    weights = torch.ones(3, requires_grad=True)
    conjugate = torch.tensor([1 + 2j]).conj()
    got = codec.decode([part.copy() for part in codec.encode([columns, weights, conjugate])])
    assert torch.equal(got[0], columns)
    assert torch.equal(got[1], weights.detach())
    assert not got[1].requires_grad
    assert torch.equal(got[2], conjugate.resolve_conj())
    with pytest.raises(TypeError, match=r"^obj: "):
        codec.encode(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match=r"Parameter is not plain data"):
        codec.encode(torch.nn.Parameter(weights))
