"""Pickles that are not plain data, or broken: they end in an error, run nothing and change nothing."""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
import struct
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import only_plain
from rankwise.group import plain_types
from rankwise.group.object_block import decode, encode

PROTO = b"\x80\x05"
MAKE = b"\x8c\x1crankwise.group.plain_types\x8c\x04make\x93".replace(
    b"\x1c", bytes([len("rankwise.group.plain_types")])
)


def calling(*args: Any) -> bytes:
    """A stream that calls the constructor with any plain arguments."""
    body = encode(args, False)[0]
    start = 11 if body[2:3] == b"\x95" else 2  # PROTO, FRAME
    return PROTO + MAKE + body[start:-1] + b"R."


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Fails if a stream changes an attribute of what it may reach, or calls one of our traps."""
    fired: list[Any] = []
    monkeypatch.setattr("os.system", fired.append)
    reachable = [plain_types.make, plain_types, np.dtype, *plain_types._LOADED.values()]
    before = [dict(vars(thing)) for thing in reachable]
    yield fired
    assert fired == []
    assert [dict(vars(thing)) for thing in reachable] == before


PLAIN_OPCODES = {
    "PROTO": PROTO + b"N.", "FRAME": PROTO + b"\x95" + struct.pack("<Q", 2) + b"N.", "STOP": b"N.",
    "MARK": b"(t.", "POP": b"NN0.", "POP_MARK": b"N(NN1.", "NONE": b"N.", "NEWTRUE": b"\x88.", "NEWFALSE": b"\x89.",
    "BININT": b"J\1\2\3\4.", "BININT1": b"K\1.", "BININT2": b"M\1\2.", "LONG1": b"\x8a\1\5.",
    "LONG4": b"\x8b\1\0\0\0\5.", "BINFLOAT": b"G" + b"\0" * 8 + b".", "SHORT_BINBYTES": b"C\1a.",
    "BINBYTES": b"B\1\0\0\0a.", "BINBYTES8": b"\x8e\1\0\0\0\0\0\0\0a.", "BYTEARRAY8": b"\x96\1\0\0\0\0\0\0\0a.",
    "SHORT_BINUNICODE": b"\x8c\1a.", "BINUNICODE": b"X\1\0\0\0a.", "BINUNICODE8": b"\x8d\1\0\0\0\0\0\0\0a.",
    "EMPTY_LIST": b"].", "APPEND": b"]Na.", "APPENDS": b"](NNe.", "EMPTY_TUPLE": b").", "TUPLE": b"(NNt.",
    "TUPLE1": b"N\x85.", "TUPLE2": b"NN\x86.", "TUPLE3": b"NNN\x87.", "EMPTY_DICT": b"}.", "SETITEM": b"}NNs.",
    "SETITEMS": b"}(NNu.", "EMPTY_SET": b"\x8f.", "ADDITEMS": b"\x8f(NN\x90.", "FROZENSET": b"(NN\x91.",
    "MEMOIZE": b"]\x94.", "BINGET": b"]\x94h\0\x86.", "LONG_BINGET": b"]\x94j\0\0\0\0\x86.",
    "STACK_GLOBAL": calling("range", 1, 2, 3), "REDUCE": calling("complex", 1.0, 2.0),
    "NEXT_BUFFER": encode(np.zeros(1000), False)[0],
}  # fmt: skip


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
def test_opcodes(opcode: Any, untouched: list[Any]) -> None:
    if opcode.name in PLAIN_OPCODES:
        stream = PLAIN_OPCODES[opcode.name]
        buffers = [np.zeros(8000, np.uint8)] * (opcode.name == "NEXT_BUFFER")
        assert repr(decode(stream, buffers, False, 0)) == repr(pickle.loads(stream, buffers=buffers))
        return
    code = opcode.code.encode("latin-1")
    for argument in (b"", b"\0" * 9, b"\1" * 300, b"1\n", b"1\n1\n", b"os\nsystem\n", b"'a'\n"):
        for before in (b"", b"N", b"(", b"(N", b"NN", MAKE + b")", b"}N", b"]("):
            with pytest.raises(TypeError, match=rf"^rank 0 sent an .* has the opcode {code[0]}\); pass allow_pickle"):
                decode(PROTO + before + code + argument + b".", [], False, 0)


def named(module: str, name: str, args: bytes = b"\x8c\x02id\x85R") -> bytes:
    """A stream that takes a global, and calls it."""
    texts = [text.encode() for text in (module, name)]
    return PROTO + b"".join(b"X" + struct.pack("<I", len(text)) + text for text in texts) + b"\x93" + args + b"."


class Own:
    pass


class Reduces:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class Persistent(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return "an id" if isinstance(value, Own) else None


def persistent() -> bytes:
    stream = io.BytesIO()
    Persistent(stream, 5).dump([Own()])
    return stream.getvalue()


GADGETS = {
    "os.system": named("os", "system"),
    "posix.system": named("posix", "system"),
    "builtins.eval": named("builtins", "eval"),
    "builtins.exec": named("builtins", "exec"),
    "builtins.getattr": named("builtins", "getattr"),
    "builtins.__import__": named("builtins", "__import__"),
    "builtins.object": named("builtins", "object", b")R"),
    "operator.attrgetter": named("operator", "attrgetter"),
    "functools.partial": named("functools", "partial"),
    "codecs.encode": named("_codecs", "encode"),
    "copyreg._reconstructor": named("copyreg", "_reconstructor"),
    "copyreg.__newobj__": named("copyreg", "__newobj__"),
    "copyreg.add_extension": named("copyreg", "add_extension"),
    "pickle.loads": named("pickle", "loads"),
    "importlib.import_module": named("importlib", "import_module"),
    "numpy _reconstruct": named("numpy.core.multiarray", "_reconstruct"),
    "numpy dtype": named("numpy", "dtype"),
    "numpy.load": named("numpy", "load"),
    "torch._load": named("torch.storage", "_load_from_bytes"),
    "a dotted name": named("rankwise.group.plain_types", "make.__globals__"),
    "a dotted name of a module": named("rankwise.group.plain_types", "sys.modules"),
    "the dot in the name": named("rankwise.group", "plain_types.make"),
    "the dot in the module": named("rankwise.group.plain_types.make", ""),
    "another function of the module": named("rankwise.group.plain_types", "_dtype"),
    "what the module imports": named("rankwise.group.plain_types", "defaultdict"),
    "our own module": named("rankwise.group.object_block", "make"),
    "a NUL in the name": named("rankwise.group.plain_types", "make\0"),
    "the constructor itself": PROTO + MAKE + b".",
    "the constructor in a list": PROTO + b"]" + MAKE + b"a.",
    "the constructor as an argument": PROTO + MAKE + MAKE + b"\x85R.",
    "a call of a result": calling("range", 1, 2, 3)[:-1] + b")R.",
    "a call of a text": PROTO + b"\x8c\x04make)R.",
    "a call with a list": PROTO + MAKE + b"]R.",
    "a global of bytes": PROTO + b"C\x01aC\x01b\x93.",
    "BUILD of the constructor": PROTO + MAKE + b"}\x8c\x08__code__Nsb.",
    "BUILD with slots": PROTO + MAKE + b"N}\x8c\x08__code__Ns\x86b.",
    "BUILD of a Counter": calling("Counter", {})[:-1] + b"}\x8c\x01aNsb.",
    "BUILD of a dtype": calling("dtype", "<f8")[:-1] + b"(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb.",
    "BUILD of an array": calling("ndarray", np.dtype("u1"), (1,), b"a")[:-1] + b"(K\x01K\x01\x85NNNtb.",
    "NEWOBJ": PROTO + MAKE + b")\x81.",
    "NEWOBJ_EX": PROTO + MAKE + b")}\x92.",
    "OBJ": PROTO + b"(" + MAKE + b"o.",
    "INST": PROTO + b"(ios\nsystem\n.",
    "GLOBAL": PROTO + b"cos\nsystem\n\x8c\x02id\x85R.",
    "an extension code": PROTO + b"\x82\x01)R.",
    "PERSID": PROTO + b"Pan id\n.",
    "BINPERSID": persistent(),
    "__reduce__": pickle.dumps(Reduces(Own, ()), 5),
    "__reduce__ with a state": pickle.dumps(Reduces(Own, (), {"a": 1}), 5),
    "__reduce__ with items": pickle.dumps(Reduces(list, (), None, iter([1])), 5),
    "__setstate__": pickle.dumps(Own(), 5),
    "protocol 0": pickle.dumps([1], 0),
    "protocol 4": pickle.dumps([1], 4),
    "a class": pickle.dumps(Own, 5),
    "an object array": pickle.dumps(np.array([None]), 5),
    "numpy's own pickle": pickle.dumps(np.arange(3), 5),
}


@pytest.mark.parametrize("name", GADGETS)
def test_gadgets(name: str, untouched: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^rank 3 sent an (object that is not plain|invalid object)"):
        decode(GADGETS[name], [], False, 3)


def test_the_first_global_that_is_not_plain_is_named() -> None:
    with pytest.raises(TypeError, match=r"^rank 1 sent .* \(its pickle names os\.system\); pass"):
        decode(PROTO + b"(" + calling("range", 1, 2, 3)[2:-1] + named("os", "system")[2:-1] + b"t.", [], False, 1)


CALLS: list[tuple[Any, ...]] = [
    (), ("nothing",), ([],), (1, 2), ("range", 1, 2), ("range", 1, 2, 3.0), ("complex", 1, 2),
    ("deque", range(10**12), None), ("Counter", range(10**12)), ("OrderedDict", range(10**12)), ("Fraction", "1e99", 1),
    ("Fraction", 1, 0), ("Decimal", "x"), ("Decimal", 1.5), ("UUID", -1), ("date", 0, 0, 0),
    ("timedelta", 10**30, 0, 0),
    ("timezone", timedelta(days=3), None), ("datetime", 2000, 1, 1, 0, 0, 0, 0, "tz", 0), ("time", 1, 1, 1, 1, None, 7),
    ("defaultdict", "eval", {}), ("defaultdict", "make", {}), ("defaultdict", "list", [1]),
    ("dtype", "O"), ("dtype", "|O8"), ("dtype", "object"), ("dtype", "O,i4"), ("dtype", "i4,O"), ("dtype", "(2,)O"),
    ("dtype", "<f8,<f8"), ("dtype", "U99999999999"), ("dtype", "float99"), ("dtype", "finfo"), ("dtype", "int4\n"),
    ("dtype", "<f٨"), ("structured dtype", ["a"], ["O"], [0], [None], 8, False),
    ("structured dtype", ["a"], [None], [0], [None], 8, False),
    ("structured dtype", ["a"], [np.dtype("f8")], [4], [None], 8, False),
    ("structured dtype", ["a"], [np.dtype("f8")], [-8], [None], 8, False),
    ("structured dtype", ["a", "a"], [np.dtype("f8")] * 2, [0, 8], [None] * 2, 16, False),
    ("structured dtype", ["a"], [np.dtype("f8")], [0], [None], -1, False),
    ("structured dtype", ["a"], [np.dtype("f8")], [0], [None], 2**40, True),
    ("subarray dtype", np.dtype("f8"), (2**62,)), ("subarray dtype", np.dtype("f8"), (-1,)),
    ("ndarray", np.dtype("f8"), (2,), b"12345678"), ("ndarray", np.dtype("f8"), (2**62, 4), b""),
    ("ndarray", np.dtype("f8"), (-1, -1), b"12345678"), ("ndarray", np.dtype("f8"), (10**12, b"a"), b""),
    ("ndarray", np.dtype("f8"), (1.0,), b"12345678"), ("ndarray", np.dtype("f8"), (1,) * 100, b"12345678"),
    ("ndarray", "f8", (1,), b"12345678"), ("ndarray", np.dtype("f8"), (1,), "12345678"),
    ("ndarray", np.dtype("f8"), [1], b"1" * 8),
    ("scalar", np.dtype("f8"), b"1234"), ("bytes_", "a"), ("str_", b"a"),
    ("MaskedArray", np.zeros(2), np.zeros(3, bool), None, False),
    ("MaskedArray", np.zeros(2), np.zeros(2), None, False),
    ("MaskedArray", np.zeros(0, "S999999"), None, np.array(1), False),
    ("MaskedArray", np.zeros(2), None, range(10**12), False),
    ("Tensor", 99, (0,), b""), ("Tensor", 1, (2,), b"1234"), ("Tensor", 1, (-1,), b"1234"),
    ("Tensor", 1, (2**62,), b""),
]  # fmt: skip


@pytest.mark.parametrize("args", CALLS, ids=lambda args: "-".join(map(str, args))[:60])
def test_calls_with_wrong_arguments(args: tuple[Any, ...], untouched: list[Any]) -> None:
    if args[:1] == ("Tensor",):
        pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
        decode(calling(*args), [], False, 0)


def test_a_tensor_for_a_rank_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankwise.arrays import torch as tensors

    monkeypatch.setitem(sys.modules, "torch", None)  # `import torch` fails
    monkeypatch.setattr(tensors, "_to_torch", tensors._to_torch.__wrapped__)  # which may have it already
    with pytest.raises(
        ValueError, match=r"^rank 4 sent an invalid object: it contains a torch tensor, but this rank has no torch: pip"
    ):
        decode(calling("Tensor", 1, (0,), b""), [], False, 4)


@pytest.mark.parametrize(
    "stream",
    [
        b"", b".", b"N", b"NN.", b"(.", b"(N.", b"N(.", b"]N", b"Na.", b"Ne.", b"](.", b"}(Nu.", b"}N(s.", b"N(a.",
        b"](a.",
        b"1.", b"0.", b"(01.", b"\x94.", b"h\0.", b"]\x94h\1.", b"]\x94j\xff\xff\xff\xff.", b"j\0\0\0\0.", b"N..",
        b"N.N",
        b"C\xffa.", b"B\xff\xff\xff\xffa.", b"\x8e" + b"\xff" * 8 + b".", b"\x8e\0\0\0\0\0\0\0\x40.",
        b"\x96" + b"\xff" * 8 + b".",
        b"\x8d" + b"\xff" * 8 + b".", b"X\xff\xff\xff\x7f.", b"\x8c\x01\xff.", b"\x8b\xff\xff\xff\xff.",
        b"\x8b\0\0\0\x80.", b"\x8a\x09a.",
        b"\x95" + b"\xff" * 8 + b"N.", b"\x95\5\0\0\0\0\0\0\0N.", b"\x80", b"\x95\0\0", b"\x93.", b"N\x93.", b"NR.",
        b"R.", b")R.",
        b"\x97.", b"}]Ns.", b"\x8f(]\x90.", b"(]\x91.", b"}(]N]Nu.", b"]NNs.", b"}Na.",
        b"\x8fNa.", b"}(N\x90.",
        b"\x85.", b"N\x86.", b"(NN\x87.", b"t.", b"\x91.", b"\x90.", b"u.", b"e.",
    ],
)  # fmt: skip
def test_broken_streams(stream: bytes) -> None:
    with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
        decode(stream, [], False, 0)


def test_bombs() -> None:
    deep = PROTO + b")" + b"\x85" * 1_000_000 + b"."
    for stream in (
        deep,
        PROTO + b"}" + deep[2:-1] + b"Ns.",  # hashed
        PROTO + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        PROTO + b"}" + b"N}" * 1_000_000 + b"s" * 1_000_000 + b".",
        PROTO + b"(" * 1_000_000 + b"t" * 1_000_000 + b".",
        PROTO + b"(" * 1_000_000 + b"\x91" * 1_000_000 + b".",
        PROTO + b")\x94" + b"\x85\x94" * 99 + b"}h\x63\x85Ns.",  # through the memo
    ):
        with pytest.raises(ValueError, match=r"nested deeper than 100 levels$"):
            decode(stream, [], False, 0)


def test_lists_that_contain_each_other_deeper_than_the_check_can_see() -> None:
    """Each is put into the next before it gets its own item. They can be loaded and freed."""
    count = 200_000
    stream = bytearray(PROTO + b"]\x94")
    for i in range(count):
        stream += b"]\x94" + b"j" + struct.pack("<I", i) + b"j" + struct.pack("<I", i + 1) + b"a0"
    stream += b"0" * count + b"."
    value = decode(bytes(stream), [], False, 0)
    del value
    gc.collect()


def test_buffers_that_do_not_match() -> None:
    stream, buffers_ = encode([np.arange(1000), np.arange(1000.0)], False)
    own = [buffer.copy() for buffer in buffers_]
    for buffers in ([], own[:1], [*own, own[0]], [own[0], own[1][:-1]], [own[0], np.zeros(9, np.uint8)]):
        with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
            decode(stream, buffers, False, 0)
    with pytest.raises(ValueError, match=r"its pickle comes with more buffers than it uses$"):
        decode(b"N.", own, False, 0)
    with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
        decode(b"\x97.", own[:1], False, 0)  # without an array


SAMPLE = [
    {1: [1, -70_000, 2**80, 0.5, None, True, "text", b"bytes", bytearray(b"x")], (1, "k"): {2, 3}, "f": frozenset([1])},
    np.arange(6.0).reshape(2, 3), np.arange(1000), np.zeros(2, "i4,U2"), np.ma.array([1, 2], mask=[0, 1], fill_value=5),
    datetime(2024, 1, 1, tzinfo=timezone.utc), Decimal("1.5"), Fraction(1, 3), deque([1], 3), Counter("aab"),
    defaultdict(list, {1: [2]}), np.float32(1), PurePosixPath("a"), UUID(int=1), slice(1, 2), range(3), 1j,
]  # fmt: skip
STREAM, BUFFERS = encode(SAMPLE, False)


def damaged(stream: bytes) -> None:
    with suppress(ValueError, TypeError):
        only_plain(decode(stream, [buffer.copy() for buffer in BUFFERS], False, 0), set())


def test_streams_cut_anywhere(untouched: list[Any]) -> None:
    for end in range(len(STREAM)):
        with pytest.raises(ValueError, match=r"^rank 0 sent an invalid object: "):
            decode(STREAM[:end], BUFFERS, False, 0)


def test_frames_that_end_anywhere() -> None:
    """Python's Unpickler skips what is left of a frame if an opcode needs more: it would see other opcodes."""
    start = 11  # of the first opcode after PROTO and FRAME
    seen = 0
    for length in range(len(STREAM) - start + 1):
        stream = STREAM[:3] + struct.pack("<Q", length) + STREAM[start:]
        try:
            got = decode(stream, [buffer.copy() for buffer in BUFFERS], False, 0)
        except ValueError:
            continue
        assert repr(got) == repr(SAMPLE)
        seen += 1
    assert seen > 100
    inner = PROTO + b"\x95" + struct.pack("<Q", 20) + b"\x95" + struct.pack("<Q", 30) + b"N" * 100
    for stream in (inner, calling("range", 1, 2, 3)[:-1] + inner[2:] + b"t."):
        with pytest.raises(ValueError, match=r"its pickle has a frame within a frame$"):
            decode(stream, [], False, 0)


@settings(deadline=None, max_examples=500)
@given(st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_streams(changes: list[tuple[int, int]]) -> None:
    stream = bytearray(STREAM)
    for at, byte in changes:
        stream[at] = byte
    damaged(bytes(stream))


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.sampled_from([MAKE, *(s[:-1] for s in PLAIN_OPCODES.values())]), max_size=12),
    st.binary(max_size=8),
)
def test_random_streams(pieces: list[bytes], rest: bytes) -> None:
    damaged(b"".join(pieces) + rest + b".")
