"""The encoding of objects: round trips and refusals. test_hostile_pickles.py has what nobody would encode."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankwise.group import plain_types
from rankwise.group.object_block import decode, encode

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
dtypes = st.one_of(dtypes, hnp.array_dtypes(dtypes, max_size=3))
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
scalars = arrays.filter(lambda array: array.size and array.dtype.kind not in "SU").map(lambda array: array.flat[0])
zones = st.one_of(
    st.none(),
    st.just(timezone.utc),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), st.text()),
)
hashable = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.integers(-(2**300), 2**300),
    st.decimals(allow_nan=False), st.fractions(), st.uuids(), st.dates(), st.timedeltas(), st.times(), st.datetimes(),
    zones, st.datetimes(timezones=zones), st.text("ab/.", max_size=8).map(PurePosixPath), st.integers(0, 9).map(range),
    st.text("ab\\.", max_size=8).map(lambda text: PureWindowsPath("c:" + text)),
)  # fmt: skip
keys = st.recursive(
    hashable,
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
atoms = st.one_of(
    hashable, st.floats(), st.complex_numbers(), st.binary().map(bytearray), st.slices(9), dtypes, scalars,
)  # fmt: skip
values = st.recursive(
    st.one_of(atoms, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, 5)),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(lambda items: defaultdict(list, items)),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.sets(keys, max_size=4),
    ),
    max_leaves=12,
)


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, np.ma.MaskedArray):
        same(got.data, want.data)
        same(np.asarray(got.mask), np.asarray(want.mask))
        same(got.fill_value, want.fill_value)
        assert got.hardmask == want.hardmask
    elif isinstance(want, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype == np.longdouble:  # whose unused bytes are random
            assert (got == want).all()
        else:
            assert got.tobytes() == want.tobytes()
    elif isinstance(want, list | tuple | deque):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            same(one, other)
    elif isinstance(want, dict):
        same(list(got.items()), list(want.items()))
        assert getattr(got, "default_factory", None) is getattr(want, "default_factory", None)
    elif isinstance(want, float | complex):
        assert str(got) == str(want)  # NaN and the signs of zero
    else:
        assert str(got) == "sNaN123" or got == want  # a signalling NaN cannot be compared
        assert repr(got) == repr(want) or isinstance(want, set | frozenset)


def sent(value: Any, allow_pickle: bool = False) -> Any:
    """The value as another rank receives it, in memory of its own."""
    stream, buffers = encode(value, allow_pickle)
    return decode(stream, [buffer.copy() for buffer in buffers], allow_pickle, 3)


@settings(deadline=None, max_examples=300)
@given(values)
def test_values_survive_a_round_trip(value: Any) -> None:
    same(sent(value), value)
    stream, buffers = encode(value, True)
    same(decode(stream, [buffer.copy() for buffer in buffers], False, 3), value)  # loads without leave


POINT = np.dtype([("at", ">f8", (2, 3)), ("name", "U3"), ("more", [("a", "i1"), ("b", "M8[us]")])], align=True)
TITLED = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "titles": ["the first", None]})
GAPS = np.dtype({"names": ["a", "b"], "formats": ["<i2", "S3"], "offsets": [6, 1], "itemsize": 11})


@pytest.mark.parametrize(
    "value",
    [
        1 - 2j, range(9, -4, -3), slice(None, 3, "any"), Decimal("-1.50"), Decimal("sNaN123"), Decimal("-Infinity"),
        Fraction(-1, 3), UUID(int=5), PurePosixPath("/a/../b"), PureWindowsPath("c:\\x"), date(2024, 2, 29),
        time(1, 2, 3, 4, timezone.utc, fold=1), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2), "X"), fold=1),
        timedelta(-1, 2, 3), timezone(timedelta(minutes=1)), timezone(timedelta(0), "zero"), Counter("abca"),
        OrderedDict(b=1, a=2), deque([1, [2]]), deque("abc", 3), defaultdict(None, {1: 2}),
        defaultdict(Counter, x=Counter()),
        np.zeros(3, POINT), np.zeros((), POINT)[()], POINT, np.ones(4, GAPS), GAPS, TITLED, np.dtype([]),
        np.zeros(2, []),
        np.dtype(("<i4", (2, 3))), np.dtype("V10"), np.zeros(3, "V3"), np.void(b"abc"), np.dtype("bool"),
        np.float64(0.5), np.bool_(True), np.datetime64("2020-01-01", "25s"), np.longdouble(1) / 3,
        np.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=7, hard_mask=True), np.ma.zeros((2, 0)),
        np.ma.zeros(2, POINT),
        np.ma.array(["a", "bcd"], mask=[1, 0]), np.ma.array(np.zeros(2000), mask=np.arange(2000) % 2),
        np.ma.array([(1, "a")], "i4,U1", mask=[(0, 1)]), [], (), {}, set(), frozenset(), b"", "", bytearray(), "\ud800",
    ],
    ids=lambda value: f"{type(value).__name__}",
)  # fmt: skip
def test_types(value: Any) -> None:
    same(sent(value), value)
    same(sent([{"v": value}], allow_pickle=True), [{"v": value}])


@pytest.mark.parametrize("data", [b"", b"a", b"a\0", b"\0", b"\0a\0\0"])
def test_numpy_text_keeps_its_trailing_nuls(data: bytes) -> None:
    for value in (np.bytes_(data), np.str_(data.decode())):
        got = sent([value])[0]
        assert type(got) is type(value)
        assert len(got) == len(data)
        assert got == value  # compared as bytes and str, NULs included


def test_large_arrays_are_buffers_and_small_ones_in_the_stream() -> None:
    large, small = np.arange(1200.0), np.arange(10)
    stream, buffers = encode({"a": large, "b": [small, large[::2]]}, False)
    assert [buffer.size for buffer in buffers] == [9600, 4800]
    assert np.shares_memory(buffers[0], large), "no copy of what is contiguous"
    assert len(stream) < 400
    memory = [buffer.copy() for buffer in buffers]
    got = decode(stream, memory, False, 0)
    assert np.shares_memory(got["a"], memory[0]), "no copy of what was received"
    same(got, {"a": large, "b": [small, large[::2]]})
    for array in (got["a"], *got["b"]):
        array += 1  # all are writable


def test_read_only_arrays_arrive_writable() -> None:
    large, small = np.frombuffer(bytes(range(256)) * 40, np.uint8), np.broadcast_to(np.float32(2), (3, 4))
    for got, want in zip(sent([large, small]), (large, small), strict=True):
        same(got, want)
        got += 1


def test_shared_and_cyclic_references() -> None:
    shared, array = [1], np.arange(3)
    first, second, both = sent([shared, array, [shared, array]])
    assert both[0] is first
    assert both[1] is second
    ring: dict[str, Any] = {}
    ring["self"] = ring
    got = sent(ring)
    assert got["self"] is got
    pair: tuple[list[Any], int] = ([], 1)
    pair[0].append(pair)
    again = sent(pair)
    assert again[0][0] is again
    assert again[1] == 1


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_types_of_ml_dtypes(name: str) -> None:
    kind = getattr(pytest.importorskip("ml_dtypes"), name)
    for value in (np.arange(5).astype(kind), np.zeros((70, 100), kind), kind(3), np.dtype(kind)):
        same(sent(value), value)


Pair = namedtuple("Pair", "a b")


class Colour(IntEnum):
    RED = 1


class Own:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)


class Text(str):
    pass


class Metres(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Own(), ".*test_encoding.Own"),
        ([1, {"a": Own}, Own()], "type"),
        (Pair(1, 2), ".*test_encoding.Pair"),
        (Colour.RED, ".*test_encoding.Colour"),
        ([Colour.RED, Own()], ".*test_encoding.Colour"),
        (Text("a"), ".*test_encoding.Text"),
        (len, "builtin_function_or_method"),
        (plain_types.take_apart, "function"),
        (Path("."), r"pathlib\.(_local\.)?PosixPath"),
        (defaultdict(lambda: 1), "a defaultdict with the factory <lambda>"),
        (defaultdict(Own), "a defaultdict with the factory Own"),
        (np.array([None]), "dtype object"),
        (np.dtype(object), "dtype object"),
        (np.zeros(2, "i4,O"), r"dtype \[\('f0', '<i4'\), \('f1', 'O'\)\]"),
        (np.rec.array([(1, 2)], "i4,i4"), "numpy.rec(ords)?.recarray"),
        (np.rec.array([(1, 2)], "i4,i4").dtype, r"dtype \(numpy.record, .*"),
        (np.ma.masked, "numpy.ma.*MaskedConstant"),
        (np.zeros(2).view(Metres), ".*test_encoding.Metres"),
        (np.ma.array(np.zeros(2).view(Metres)), ".*test_encoding.Metres"),
        (memoryview(b""), "memoryview"),
        (Exception("x"), "Exception"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_plain_data_is_named(value: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^obj: {name} is not plain data; pass allow_pickle=True if every rank of"):
        encode([3, value], False)


def deep_list(levels: int) -> list[Any]:
    return [] if levels == 1 else [deep_list(levels - 1)]


def test_depth() -> None:
    for wrap in (lambda value: [value], lambda value: (value,), lambda value: {1: value}, lambda value: deque([value])):
        value: Any = 1
        while True:
            try:
                encode(wrap(value), False)
            except ValueError as error:
                assert str(error) == "obj: it is nested deeper than 100 levels"  # noqa: PT017 - the loop ends here
                break
            value = wrap(value)
            same(sent(value), value)
        stream, _ = encode(wrap(value), True)
        same(decode(stream, [], True, 0), wrap(value))
    with pytest.raises(ValueError, match=r"^rank 2 sent an invalid object: it is nested deeper than 100 levels$"):
        decode(pickle.dumps([[]] * 3 + [deep_list(100)], 5), [], False, 2)
    endless: Any = deque()
    endless.append(endless)
    with pytest.raises(ValueError, match=r"^obj: it is nested too deep, or contains itself$"):
        encode(endless, False)


def test_a_wide_object_that_contains_its_parts_many_times_is_encoded_once() -> None:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]  # 2**60 paths
    got = sent(value)
    assert got[0] is got[1]


def test_allowed_pickles() -> None:
    for value in (Own(), Pair(1, [2]), Colour.RED, {"a": Own(), "x": np.arange(2000.0)}):
        stream, buffers = encode(value, True)
        got = decode(stream, [buffer.copy() for buffer in buffers], True, 0)
        assert type(got) is type(value)
        if isinstance(value, dict):
            assert got["a"] == value["a"]
            same(got["x"], value["x"])
        else:
            assert got == value
        with pytest.raises(
            TypeError,
            match=r"^rank 1 sent an object that is not plain data \(its pickle names [\w.]*test_encoding\.\w+\); pass",
        ):
            decode(stream, buffers, False, 1)


def test_an_object_that_cannot_be_pickled() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        encode(lambda: 1, True)


# ---- tensors ----


def test_tensors_of_every_dtype() -> None:
    torch = pytest.importorskip("torch", reason="its tensors are tested")
    from rankwise.arrays.torch import dtypes

    for dtype in dtypes():
        for shape in ((), (0, 3), (5,), (3, 2048)):
            want = torch.ones(shape).to(dtype)
            got = sent({"w": want})["w"]
            assert (type(got), got.dtype, got.shape) == (torch.Tensor, dtype, want.shape)
            assert got.tolist() == want.tolist()
            got.zero_()  # its memory is its own
    assert torch.bfloat16 in dtypes()


def test_tensors_that_are_not_contiguous_or_require_grad() -> None:
    torch = pytest.importorskip("torch", reason="its tensors are tested")
    columns = torch.arange(6000.0).view(2, 3000).t()
    weights = torch.ones(3, requires_grad=True)
    conjugate = torch.tensor([1 + 2j]).conj()
    got = sent([columns, weights, conjugate])
    assert torch.equal(got[0], columns)
    assert torch.equal(got[1], weights.detach())
    assert not got[1].requires_grad
    assert torch.equal(got[2], conjugate.resolve_conj())
    with pytest.raises(TypeError, match=r"^obj: "):
        encode(torch.eye(3).to_sparse(), False)
    with pytest.raises(TypeError, match=r"Parameter is not plain data"):
        encode(torch.nn.Parameter(weights), False)
