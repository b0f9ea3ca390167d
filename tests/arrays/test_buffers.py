"""Arrays of any kind become checked buffers."""

from __future__ import annotations

import array
import ctypes
import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rankwise.arrays import buffers
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import source, target
from rankwise.contract.types import DType

TYPES = {
    DType.F64: np.float64,
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: ml_dtypes.bfloat16,
    DType.FP8E4M3: ml_dtypes.float8_e4m3fn,
    DType.FP8E5M2: ml_dtypes.float8_e5m2,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.I16: np.int16,
    DType.I8: np.int8,
    DType.U64: np.uint64,
    DType.U32: np.uint32,
    DType.U16: np.uint16,
    DType.U8: np.uint8,
    DType.BOOL: np.bool_,
    DType.C64: np.complex64,
    DType.C128: np.complex128,
}


def memory(buffer: Buffer) -> bytes:
    """What a communicator sees when the operation runs."""
    buffer.pack()
    return ctypes.string_at(buffer.ptr, buffer.nbytes)


def double(buffer: Buffer) -> Any:
    """What an operation in place does, and what it returns."""
    buffer.pack()
    raw = (ctypes.c_char * buffer.nbytes).from_address(buffer.ptr)
    np.frombuffer(raw, np.asarray(buffer.array).dtype)[:] *= 2
    return buffer.finish()


@pytest.mark.parametrize("dtype", DType)
def test_every_type(dtype: DType) -> None:
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(TYPES[dtype])
    for given in (x, x[:, ::-1], x[:0], x[0, 1, ...]):
        buffer = source(given)
        assert (buffer.dtype, buffer.count, buffer.shape) == (dtype, given.size, given.shape)
        assert memory(buffer) == given.tobytes()
    assert source(x).ptr == x.ctypes.data
    assert source(x).kind.empty((2,), dtype).finish().dtype == x.dtype


@pytest.mark.parametrize("dtype", ["longlong", "ulonglong", "intc", "long", "ulong"])
def test_other_names_of_integer_types(dtype: str) -> None:
    x = np.arange(3, dtype=dtype)
    for given in (x, x[::-1]):
        buffer = source(given)
        assert buffer.dtype.is_integral
        assert buffer.dtype.itemsize == x.itemsize


def test_contiguous_arrays_are_used_in_place() -> None:
    x = np.arange(6.0).reshape(2, 3)
    buffer = target(x)
    assert buffer.ptr == x.ctypes.data
    assert double(buffer) is x
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda a: a[:, 1:4:2], id="strided"),
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: a[::-1], id="reversed"),
        pytest.param(lambda a: np.asfortranarray(a), id="fortran"),
        pytest.param(lambda a: a.astype(">f8"), id="byte-swapped"),
        pytest.param(lambda a: a[:, 2:3][..., None], id="extra axis"),
        pytest.param(lambda a: np.frombuffer(bytearray(81), np.uint8)[1:].view(np.float64), id="unaligned"),
    ],
)
def test_other_arrays_are_packed_and_unpacked(view: Any) -> None:
    base = np.arange(24.0).reshape(4, 6)
    x = view(base)
    before = x.copy()
    buffer = target(x)
    assert memory(buffer) == np.ascontiguousarray(x, np.float64).tobytes()
    assert double(buffer) is x
    assert (x == before * 2).all()
    untouched = ~np.isin(np.arange(24), before.ravel().astype(int))
    if np.shares_memory(x, base):
        assert (base.ravel()[untouched] == np.arange(24)[untouched]).all()


def test_zero_dimensions_and_zero_lengths() -> None:
    point = np.array(3.0)
    assert double(target(point)) is point
    assert point == 6
    for shape in ((0,), (3, 0, 2)):
        x = np.empty(shape, np.int16)
        assert (target(x).count, target(x).shape) == (0, shape)
        assert target(x).finish() is x


def test_a_matrix_is_an_array() -> None:
    x = np.arange(6, dtype=np.int32).reshape(2, 3).view(type("Mine", (np.ndarray,), {}))
    assert double(target(x)) is x
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_masked_arrays_are_refused() -> None:
    for refused in (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.arange(6.0)[::2]):
        with pytest.raises(TypeError, match=r"^x: expected a plain array, got a masked one"):
            source(refused)


@pytest.mark.parametrize(
    ("x", "dtype", "count"),
    [
        (bytearray(b"\x01\x02\x03"), DType.U8, 3),
        (array.array("d", [1.5, 2.5]), DType.F64, 2),
        (array.array("h", [1, 2, 3]), DType.I16, 3),
        (memoryview(bytearray(b"\x01\x02\x03\x04"))[::2], DType.U8, 2),
        ((ctypes.c_int32 * 3)(1, 2, 3), DType.I32, 3),
        ((ctypes.c_float * 2)(1, 2), DType.F32, 2),
    ],
)
def test_buffers_in_place(x: Any, dtype: DType, count: int) -> None:
    before = list(x)
    buffer = target(x)
    assert (buffer.dtype, buffer.count) == (dtype, count)
    assert double(buffer) is x
    assert list(x) == [2 * value for value in before]
    assert isinstance(source(x).kind.empty((2,), dtype).finish(), np.ndarray)


def test_array_interface_in_place() -> None:
    class Holder:
        def __init__(self) -> None:
            self.data = np.arange(4, dtype=np.uint16)
            self.__array_interface__ = self.data.__array_interface__

    x = Holder()
    assert double(target(x)) is x
    assert x.data.tolist() == [0, 2, 4, 6]


class Exchanged:
    """A producer of DLPack and nothing else, as far as NumPy is concerned."""

    def __init__(self, data: np.ndarray[Any, Any], device: int = 1) -> None:
        self.data = data
        self.device = device

    def __dlpack__(self, **how: Any) -> Any:
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


class Immutable(Exchanged):
    """What JAX does: read-only memory, and a namespace that makes more of the kind."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        super().__init__(data.copy())
        self.data.flags.writeable = False

    def __array_namespace__(self) -> type[Immutable]:
        return Immutable

    @classmethod
    def asarray(cls, data: np.ndarray[Any, Any]) -> Immutable:
        return cls(data)


# Before 2.1, NumPy took all that came by DLPack for read-only.
numpy_exchanges_writable = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


@pytest.mark.skipif(not numpy_exchanges_writable, reason="this NumPy imports DLPack read-only")
def test_dlpack_in_place() -> None:
    x = Exchanged(np.arange(3.0))
    assert double(target(x)) is x
    assert x.data.tolist() == [0, 2, 4]


@pytest.mark.skipif(not numpy_exchanges_writable, reason="this NumPy exports no read-only DLPack")
def test_immutable_arrays_give_new_ones() -> None:
    x = Immutable(np.arange(3.0))
    new = double(target(x))
    assert isinstance(new, Immutable)
    assert new.data.tolist() == [0, 2, 4]
    assert x.data.tolist() == [0, 1, 2]
    assert isinstance(source(x).kind.empty((2,), DType.F64).finish(), Immutable)
    with pytest.raises(TypeError, match=r"^out: expected a writable array, got an immutable Immutable$"):
        buffers.result(x, (3,), source(np.ones(3)))


def test_memory_of_an_unknown_device() -> None:
    with pytest.raises(TypeError, match=r"^x: expected memory of the host, .* __cuda_array_interface__, got Exchanged"):
        source(Exchanged(np.ones(2), device=2))


@pytest.mark.parametrize(
    ("x", "dtype", "doubled"),
    [
        (3, DType.I64, 6),
        (True, DType.BOOL, None),
        (1.5, DType.F64, 3.0),
        (1 + 2j, DType.C128, 2 + 4j),
        (np.float32(1.5), DType.F32, np.float32(3)),
        (np.uint8(200), DType.U8, np.uint8(144)),
        (ml_dtypes.bfloat16(1.5), DType.BF16, ml_dtypes.bfloat16(3)),
    ],
)
def test_numbers_come_back_as_numbers(x: Any, dtype: DType, doubled: Any) -> None:
    buffer = target(x)
    assert (buffer.dtype, buffer.shape, buffer.count) == (dtype, (), 1)
    back = buffer.finish() if doubled is None else double(buffer)
    assert type(back) is type(x)
    assert back == (x if doubled is None else doubled)


@pytest.mark.parametrize(
    "x",
    [
        np.array([1, "a"], object),
        np.array(["abc"]),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, np.longdouble),
        np.zeros(2, ml_dtypes.float8_e4m3b11fnuz),
        np.str_("text"),
    ],
)
def test_unsupported_types(x: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"x: arrays of dtype {x.dtype} are not supported; expected bool")):
        source(x)


@pytest.mark.parametrize("x", [None, "text", [1, 2], (1.0,), {}, object()])
def test_objects_that_are_not_arrays(x: Any) -> None:
    hint = "; Python objects are for broadcast_object" if isinstance(x, str | list | tuple | dict) else "$"
    with pytest.raises(TypeError, match=rf"^x: expected an array, a buffer or a number, got {type(x).__name__}{hint}"):
        source(x)


def test_several_arrays() -> None:
    for x in ([np.ones(3), np.ones(3)], (np.ones(2),)):
        with pytest.raises(TypeError, match="; of several arrays, pass one at a time, or a single"):
            source(x)


def test_buffers_of_other_things() -> None:
    pointers = (ctypes.c_void_p * 2)()
    with pytest.raises(TypeError, match=r"^x: "):
        source(pointers)
    with pytest.raises(TypeError, match=r"^x: "):
        source(array.array("u", "abc") if sys.version_info < (3, 13) else array.array("w", "abc"))


def test_integers_beyond_64_bits() -> None:
    with pytest.raises(ValueError, match=r"^x=9223372036854775808: expected an int from -2\*\*63 to 2\*\*63 - 1"):
        source(2**63)


def test_read_only_is_read_but_not_written() -> None:
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    for x in (fixed, b"abc", memoryview(b"abc"), np.broadcast_to(np.float32(1), (2, 2)), fixed[::2]):
        assert source(x).count > 0
        with pytest.raises(ValueError, match=r"^x: expected a writable array, got a read-only one"):
            target(x)
        with pytest.raises(ValueError, match=r"^out: expected a writable array, got a read-only one"):
            buffers.writable(x)


def test_out_is_checked() -> None:
    x = np.arange(6.0)
    like = source(x)
    good = np.empty((2, 6))
    assert buffers.result(good, (2, 6), like).finish() is good
    turned = np.empty((6, 2)).T
    assert buffers.result(turned, (2, 6), like).finish() is turned
    for out, error, text in (
        (np.empty((6, 2)), ValueError, r"out: expected shape (2, 6), got (6, 2)"),
        (np.empty((2, 6), np.float32), ValueError, "out: expected dtype float64, got float32"),
        (3.0, TypeError, "out: expected a writable array, got an immutable float"),
        ("text", TypeError, "out: expected an array, a buffer or a number, got str"),
    ):
        with pytest.raises(error, match=f"^{re.escape(text)}$"):
            buffers.result(out, (2, 6), like)


def test_out_must_not_overlap() -> None:
    base = np.arange(10.0)
    for x, out in ((base[:4], base[:4]), (base[:4], base[3:7]), (base[3:7], base[:4])):
        with pytest.raises(ValueError, match=r"^out: expected memory of its own, but it overlaps x$"):
            buffers.result(out, (4,), source(x))
    assert buffers.result(base[4:8], (4,), source(base[:4])).finish() is not None
    assert buffers.result(base[:0], (0,), source(base[:0])).count == 0


def test_receiver_of_a_shape() -> None:
    assert buffers.receiver((2, 3), None).finish().dtype == np.float64
    assert buffers.receiver([4], "bfloat16").finish().dtype == ml_dtypes.bfloat16
    assert buffers.receiver(5, np.int8).finish().shape == (5,)
    assert buffers.receiver((), DType.U32).finish().shape == ()
    assert buffers.receiver(np.int64(2), np.dtype("f4")).finish().dtype == np.float32
    for shape in ((2, -1), (2.5,), ("a",), True):
        with pytest.raises(ValueError, match=r"^x=.*: expected an array, or a shape of ints >= 0$"):
            buffers.receiver(shape, None)
    for dtype in ("float128", "nonsense", object, 3.5):
        with pytest.raises(TypeError, match=r"^dtype=.*: expected bool, an integer"):
            buffers.receiver((2,), dtype)


def test_receiver_of_an_array() -> None:
    x = np.empty(3, np.float32)
    assert buffers.receiver(x, None).finish() is x
    assert buffers.receiver(x, "float32").finish() is x
    with pytest.raises(ValueError, match=r"^dtype='int8': expected x's dtype, float32, or None$"):
        buffers.receiver(x, "int8")


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """int16, of these strides in bytes, in memory that is large enough and whose middle is the first element."""
    memory = np.zeros(100, np.int16)
    return np.ndarray(shape, np.int16, memory.data, 100, strides)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3,), (0,)),
        ((2, 3), (0, 2)),
        ((2, 3), (2, 2)),
        ((3, 2), (4, -4)),
        ((3,), (1,)),
        ((4, 3), (4, 6)),
        ((2,), (-1,)),
    ],
)
def test_elements_that_share_memory_are_read_but_not_written(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x = strided(shape, strides)
    source(x)
    with pytest.raises(ValueError, match=r"^out: expected elements with memory of their own.* as out.copy\(\) makes"):
        target(x, "out")


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3,), (-2,)), ((3, 2), (-4, 20)), ((3, 2), (4, 6)), ((1, 3), (0, 4)), ((2, 3, 4), (6, 2, 24)), ((0, 3), (0, 0))],
)
def test_strided_elements_with_memory_of_their_own(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x = strided(shape, strides)
    buffer = target(x)
    buffer.array[...] = np.arange(x.size).reshape(shape)
    assert buffer.finish() is x
    assert x.ravel().tolist() == [*range(x.size)]
