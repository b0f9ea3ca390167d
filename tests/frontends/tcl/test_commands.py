"""The table of commands: both syntaxes, aliases, every mistake's message, the tensors; in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwise.frontends.tcl import worlds
from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.parameters import REQUIRED, camel
from rankwise.frontends.tcl.session import Session
from tcl_calls import call, error


def to_list(session: Session, *words: str) -> str:
    return call(session, "tensor_to_list", call(session, *words))


@pytest.mark.parametrize("name", ["distributed_all_reduce", "distributed_reduce", "distributed_reduce_scatter"])
def test_prod_is_product(session: Session, name: str) -> None:
    tensor = call(session, "full", "2", "3")
    option = "-operation" if name == "distributed_all_reduce" else "-op"
    for op in ("prod", "product"):
        assert to_list(session, name, "-tensor", tensor, option, op) == "3.0 3.0"


# ---- the table ----

WANTED = """
distributed_init distributed_barrier get_rank get_world_size is_distributed distributed_gather
distributed_scatter distributed_reduce_scatter distributed_all_reduce distributed_reduce
distributed_broadcast distributed_all_gather distributed_all_to_all distributed_send distributed_isend
distributed_recv distributed_irecv distributed_wait distributed_test distributed_new_group
distributed_finalize tensor_create zeros ones full empty arange rand randn tensor_shape tensor_dtype
tensor_numel tensor_to_list tensor_item tensor_print tensor_reshape tensor_slice tensor_add tensor_sub
tensor_mul tensor_div tensor_sum tensor_mean tensor_save tensor_load tensor_delete help
"""


def test_the_commands_of_the_design_exist() -> None:
    assert set(WANTED.split()) <= set(COMMANDS)
    names = [name for command in COMMANDS.values() for name in {command.name, command.alias}]
    assert len(names) == len(set(names))
    assert camel("distributed_reduce_scatter") == "distributedReduceScatter"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_every_table_row_is_consistent(command: object, session: Session) -> None:
    row = COMMANDS[command.name]  # type: ignore[attr-defined]
    names = [parameter.name for parameter in row.parameters]
    for form in row.positional:
        assert set(form) <= set(names)
    assert {p.name for p in row.parameters if p.default is REQUIRED} <= set(row.positional[0])
    assert all(parameter.help for parameter in row.parameters)
    assert row.what.endswith(".")
    too_many = ["x"] * (max(map(len, row.positional)) + 1)
    assert error(session, row.name, *too_many) == row.wording.many.format(usage=row.usages[0])
    if not row.parameters:
        return
    assert error(session, row.name, "-nonsense", "1") == row.wording.unknown.format(given="-nonsense")
    option = f"-{row.parameters[0].option}"
    assert error(session, row.name, option) == row.wording.no_value.format(given=option)
    if row.parameters[0].default is REQUIRED:
        missing = ", ".join(f"-{p.option}" for p in row.parameters if p.default is REQUIRED)
        text = row.wording.few or row.wording.missing
        assert error(session, row.name) == text.format(missing=missing, usage=row.usages[0])


# ---- messages of the pages ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("distributed_barrier extra_arg", "Wrong number of arguments. Expected: torch::distributed_barrier"),
        ("distributed_gather -dst 0", "Required parameter missing: -tensor"),
        ("distributed_gather", "Required parameter missing: -tensor"),
        ("distributed_gather -tensor nonexistent", "Invalid tensor name"),
        ("distributed_gather nonexistent", "Invalid tensor name"),
        ("distributed_gather -tensor tensor0 -dst not_a_number", "Invalid -dst parameter. Must be an integer."),
        ("distributed_gather tensor0 1.5", "Invalid -dst parameter. Must be an integer."),
        ("distributed_gather -tensor tensor0 -invalid_param value", "Unknown parameter: -invalid_param"),
        ("distributed_gather -tensor tensor0 -dst", "Missing value for parameter"),
        ("distributed_gather tensor0 0 group extra_arg", "Wrong number of arguments for positional syntax"),
        ("distributed_scatter -src 0", "Required parameter missing: -tensor"),
        ("distributed_scatter tensor0 -1", "Required parameter missing: -tensor, or invalid src parameter"),
        (
            "distributed_scatter -tensor tensor0 -src -1",
            "Required parameter missing: -tensor, or invalid src parameter",
        ),
        ("distributed_scatter nonexistent_tensor 0", "Invalid tensor handle"),
        ("distributed_reduce_scatter -op sum", "Required parameter missing: -tensor"),
        (
            "distributed_reduce_scatter tensor0 invalid",
            "Required parameter missing: -tensor, or invalid operation. Valid operations: sum, mean, max, min, product",
        ),
        ("distributed_reduce_scatter nonexistent_tensor sum", "Invalid tensor handle"),
    ],
)
def test_messages_of_the_pages(session: Session, words: str, message: str) -> None:
    assert call(session, "ones", "2 2") == "tensor0"
    for mode in ((), ("0", "1", "gloo"), ("0", "4", "nccl")):
        if mode:
            call(session, "distributed_init", *mode)
        assert error(session, *words.split()) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("distributed_scatter", "tensor0", "x"), 'Invalid src parameter: "x". Must be an integer.'),
        (
            ("distributed_scatter", "-tensor", "tensor0", "-src", "x"),
            'Invalid -src parameter: "x". Must be an integer.',
        ),
        (
            ("distributed_all_reduce", "tensor0", "sun"),
            'Invalid -operation parameter: "sun". Valid operations: sum, mean, max, min, product',
        ),
        (("distributed_broadcast", "tensor7"), 'Invalid -tensor parameter: "tensor7". Must be a tensor handle.'),
        (("distributed_broadcast", "tensor0", "-1"), 'Invalid -root parameter: "-1". Must be a rank of at least 0.'),
        (("distributed_send", "tensor0", "0", "-3"), None),
        (("distributed_new_group", "pair", "0 0"), None),
        (("distributed_new_group", "", "0"), 'Invalid -name parameter: "". Must not be empty.'),
        (("zeros", "2 -1"), None),
        (("zeros", "2", "float31"), None),
        (("tensor_create", "1 2 x"), None),
        (("tensor_create", "{1 2} {3}"), "Invalid -data parameter. Its lists must be of one length."),
        (("tensor_create", "{1 2"), None),
        (
            ("tensor_create", "1 2 3", "2 2", "float32"),
            'Invalid -shape parameter: "2 2". -data has 3 numbers, and this shape needs 4.',
        ),
        (("tensor_create", "1.5 2", "int32"), 'Invalid -data parameter: "1.5". Must be numbers that int32 can hold.'),
        (("tensor_create", "1 300", "uint8"), 'Invalid -data parameter: "300". Must be numbers that uint8 can hold.'),
        (("full", "2", "1.5", "int8"), None),
        (("arange", "0", "5", "0", "int8"), 'Invalid -step parameter: "0". Must not be 0.'),
        (("rand", "2", "int32"), 'Invalid -dtype parameter: "int32". Must be a floating-point type.'),
        (("tensor_item", "tensor0"), "A tensor of 4 elements has no single item: shape {2 2}"),
        (
            ("tensor_reshape", "tensor0", "3 2"),
            'Invalid -shape parameter: "3 2". The tensor has 4 elements, shape {2 2}.',
        ),
        (("tensor_sum", "tensor0", "2"), 'Invalid -dim parameter: "2". The tensor has 2 dimensions, shape {2 2}.'),
        (("tensor_add", "tensor0", "five"), 'Invalid -other parameter: "five". Must be a tensor handle or a number.'),
        (("tensor_load", "/nowhere/x.npy"), 'Invalid -file parameter: "/nowhere/x.npy". No such file or directory.'),
        (("tensor_save", "tensor0", "/nowhere/x.npy"), None),
        (
            ("zeros", "2", "float32", "cuda"),
            'Invalid -device parameter: "cuda". Must be cpu: tensors are in host memory.',
        ),
        (("ones", "2", "float32", "cpu", "maybe"), None),
        (
            ("ones", "-shape", "2", "-dtype", "int32", "-requiresGrad", "1"),
            'Invalid -requiresGrad parameter: "1". The tensor is of int32, and only floats have gradients.',
        ),
        (("tensor_create", "1 2", "2", "float31"), None),
        (("help", "fly"), 'Invalid -command parameter: "fly". torch::help lists the commands.'),
    ],
)
def test_other_mistakes_name_parameter_and_value(session: Session, words: tuple[str, ...], message: str | None) -> None:
    call(session, "ones", "2 2")
    said = error(session, *words)
    if message is not None:
        assert said == message
    else:
        assert said.startswith("Invalid -")


def test_a_long_wrong_value_is_shortened(session: Session) -> None:
    said = error(session, "tensor_create", "1 " * 10000 + "x")
    assert len(said) < 150


# ---- syntax ----


def test_named_parameters_in_any_order(session: Session) -> None:
    call(session, "ones", "-dtype", "int32", "-shape", "2 3")
    assert call(session, "tensor_dtype", "tensor0") == "Int32"
    gathered = call(session, "distributed_gather", "-group", "any one", "-dst", "-1", "-tensor", "tensor0")
    assert call(session, "tensor_shape", gathered) == "1 2 3"


def test_negative_numbers_are_not_options(session: Session) -> None:
    assert to_list(session, "arange", "-2", "1") == "-2.0 -1.0 0.0"
    assert to_list(session, "tensor_create", "-1.5") == "-1.5"
    assert to_list(session, "tensor_create", "-inf nan") == "-inf nan"
    assert to_list(session, "tensor_create", "-inf") == "-inf"


def test_positional_forms(session: Session) -> None:
    assert to_list(session, "tensor_create", "5.0", "float32") == "5.0"
    assert to_list(session, "tensor_create", "1 2", "2 1", "int8") == "1 2"
    assert to_list(session, "arange", "3", "int64") == "0 1 2"
    assert to_list(session, "arange", "-0x2", "0b10", "0O1", "int64") == "-2 -1 0 1"  # as Tcl writes numbers
    assert to_list(session, "arange", "1", "3", "int64") == "1 2"
    assert to_list(session, "arange", "5", "1", "-2", "int64") == "5 3"
    assert "simulated" in call(session, "distributed_init", "1", "4", "nccl") + call(session, "distributed_barrier")


def test_device_and_requires_grad_come_last_in_positional_calls(session: Session) -> None:
    for words in (
        ("ones", "1", "int8", "cpu", "false"),
        ("full", "1", "1", "int8", "cpu", "0"),
        ("arange", "1", "2", "int8", "cpu", "0"),
        ("tensor_create", "1", "int8", "cpu"),
        ("tensor_create", "1", "1", "int8", "cpu", "0"),
        ("zeros", "-requiresGrad", "0", "-device", "cpu", "-dtype", "int8", "-shape", "1"),
    ):
        assert call(session, "tensor_dtype", call(session, *words)) == "Int8"
    assert 'Invalid -dtype parameter: "float31"' in error(session, "tensor_create", "1 2", "2", "float31")


# ---- modes in one process ----


def test_alone_collectives_give_copies(session: Session) -> None:
    given = call(session, "tensor_create", "{1 2 3} {4 5 6}", "float64")
    for mode in ((), ("0", "1"), ("2", "4", "nccl")):
        if mode:
            call(session, "distributed_init", *mode)
        for words in (
            ("distributed_scatter", given, "100", "workers"),
            ("distributed_reduce_scatter", given, "mean"),
            ("distributed_all_reduce", given, "product"),
            ("distributed_reduce", given, "-7"),
            ("distributed_broadcast", given, "3"),
            ("distributed_all_to_all", given),
        ):
            handle = call(session, *words)
            assert handle != given
            assert session.handles.tensors[handle] is not session.handles.tensors[given]
            np.testing.assert_array_equal(session.handles.tensors[handle], [[1, 2, 3], [4, 5, 6]])
        for words in (("distributed_gather", given, "-9", "any"), ("distributed_all_gather", given)):
            assert call(session, "tensor_shape", call(session, *words)) == "1 2 3"


def test_init_names_its_mode(session: Session) -> None:
    facts = ("get_rank", "get_world_size", "is_distributed", "distributed_barrier")

    def now() -> list[str]:
        return [call(session, fact) for fact in facts]

    assert now() == ["0", "1", "0", "Distributed not initialized"]
    assert call(session, "distributed_finalize") == "Distributed not initialized"
    assert call(session, "distributed_init", "0", "1", "gloo") == (
        "Distributed training initialized (single GPU): rank=0, world_size=1, backend=gloo"
    )
    assert now() == ["0", "1", "0", "Barrier synchronized (single GPU)"]
    said = call(session, "distributed_init", "0", "4", "nccl")
    assert said.startswith(
        "Distributed training initialized (emulated multi-GPU): rank=0, world_size=4, backend=emulated_nccl (Note: "
    )
    assert now() == ["0", "4", "1", "Barrier synchronized (simulated multi-GPU)"]
    assert error(session, "distributed_init", "0", "4", "no.such.host.invalid").startswith(
        'Invalid -masterAddr parameter: "no.such.host.invalid". No such host'
    )
    assert now() == ["0", "4", "1", "Barrier synchronized (simulated multi-GPU)"]
    assert call(session, "distributed_finalize") == "Distributed training finalized"
    assert now() == ["0", "1", "0", "Distributed not initialized"]


def test_a_mean_of_integers_is_refused_alone_too(session: Session) -> None:
    given = call(session, "ones", "2", "int32")
    assert 'parameter: "mean". The tensor is of int32' in error(session, "distributed_all_reduce", given, "mean")


# ---- tensors ----


def test_handles_count_in_each_session(session: Session) -> None:
    assert [call(session, "ones", "1") for _ in range(3)] == ["tensor0", "tensor1", "tensor2"]
    assert Session(COMMANDS).answer("ones", ["1"]) == ("ok", "tensor0", "NONE")
    call(session, "tensor_delete", "tensor1")
    assert error(session, "tensor_delete", "tensor1").startswith('Invalid -tensor parameter: "tensor1"')
    assert call(session, "ones", "1") == "tensor3"


@pytest.mark.parametrize(
    ("dtype", "shown", "numbers"),
    [
        ("float64", "Float64", "0.1 1e+300 -2.0 inf"),
        ("float32", "Float32", "0.1 1e+20 -2.0 nan"),
        ("float16", "Float16", "0.1 1.5 -2.0"),
        ("bfloat16", "BFloat16", "0.5 1.5 -2.0"),
        ("int64", "Int64", "9223372036854775807 -1"),
        ("int32", "Int32", "2147483647 -2147483648"),
        ("int16", "Int16", "-5 5"),
        ("int8", "Int8", "-128 127"),
        ("uint64", "UInt64", "18446744073709551615 0"),
        ("uint32", "UInt32", "4294967295 0"),
        ("uint16", "UInt16", "65535 0"),
        ("uint8", "UInt8", "255 0"),
        ("bool", "Bool", "1 0"),
    ],
)
def test_every_dtype_keeps_its_numbers(session: Session, tmp_path: Path, dtype: str, shown: str, numbers: str) -> None:
    given = call(session, "tensor_create", numbers, dtype)
    assert call(session, "tensor_to_list", given) == numbers
    assert call(session, "tensor_dtype", given) == shown
    assert call(session, "tensor_dtype", call(session, "zeros", "1", shown)) == shown  # its own name is taken too
    gathered = call(session, "distributed_gather", given)
    assert call(session, "tensor_to_list", gathered) == numbers
    if dtype != "bfloat16":  # NumPy's files do not know it
        file = str(tmp_path / "x.npy")
        call(session, "tensor_save", given, file)
        loaded = call(session, "tensor_load", "-file", file)
        assert (call(session, "tensor_to_list", loaded), call(session, "tensor_dtype", loaded)) == (numbers, shown)


def test_bfloat16_is_not_saved_as_another_dtype(session: Session, tmp_path: Path) -> None:
    given = call(session, "ones", "1", "bfloat16")
    assert "bfloat16" in error(session, "tensor_save", given, str(tmp_path / "x.npy"))
    assert not (tmp_path / "x.npy").exists()


def test_loading_files_without_a_tensor(session: Session, tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "complex.npy", np.ones(2, np.complex64))
    np.savez(tmp_path / "many.npz", np.ones(2), np.ones(2))
    np.save(tmp_path / "big.npy", np.arange(3, dtype=">i4"))
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("text.npy", "complex.npy", "many.npz", "empty.npy"):
        assert error(session, "tensor_load", str(tmp_path / name)).startswith("Invalid -file parameter: ")
    assert to_list(session, "tensor_load", str(tmp_path / "big.npy")) == "0 1 2"


def test_arithmetic(session: Session) -> None:
    a = call(session, "tensor_create", "{1 2} {3 4}")
    b = call(session, "tensor_create", "10 20")
    for name, expected in (
        ("add", "11.0 22.0 13.0 24.0"),
        ("sub", "-9.0 -18.0 -7.0 -16.0"),
        ("mul", "10.0 40.0 30.0 80.0"),
        ("div", "0.1 0.1 0.3 0.2"),
        ("eq", "0 0 0 0"),
    ):
        assert to_list(session, f"tensor_{name}", a, b) == expected
    assert to_list(session, "tensor_div", a, "0") == "inf inf inf inf"
    assert call(session, "tensor_dtype", call(session, "tensor_mul", a, "2.0")) == "Float32"
    assert to_list(session, "tensor_matmul", a, a) == "7.0 10.0 15.0 22.0"
    assert to_list(session, "tensor_transpose", a) == "1.0 3.0 2.0 4.0"
    assert to_list(session, "tensor_max", "-tensor", a, "-dim", "0", "-keepdim", "1") == "3.0 4.0"
    assert to_list(session, "tensor_sum", a) == "10.0"
    assert to_list(session, "tensor_slice", a, "1", "0", "1") == "1.0 3.0"
    assert error(session, "tensor_add", a, call(session, "ones", "3")) == (
        "Operands do not fit together: float32 {2 2} and float32 {3}"
    )
    assert call(session, "tensor_to_list", a) == "1.0 2.0 3.0 4.0"
    whole = call(session, "tensor_create", "-data", "1 2", "-dtype", "int32")
    for number in ("9999999999", "99999999999999999999999"):
        assert error(session, "tensor_mul", whole, number) == (
            f'Invalid -other parameter: "{number}". Must be a number that fits into the tensor\'s type, int32.'
        )


def test_random_tensors(session: Session) -> None:
    even = session.handles.tensors[call(session, "rand", "1000")]
    normal = session.handles.tensors[call(session, "randn", "1000")]
    assert 0 <= even.min() < 0.1 < 0.9 < even.max() <= 1
    assert normal.min() < -1.5 < 1.5 < normal.max()
    assert (even != session.handles.tensors[call(session, "rand", "1000")]).any()


def test_no_error_leaves_a_command(session: Session) -> None:
    code, text, why = session.answer("ones", [f"{2**40} {2**20}"])
    assert code == "error"
    assert text
    assert why.startswith("RANKWISE ")


def test_an_error_of_the_backend_that_was_asked_for_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(backend: str | None = None) -> None:
        raise ValueError("why") if backend else AssertionError("another backend was taken")

    monkeypatch.setattr(worlds.rw, "init", init)
    with pytest.raises(ValueError, match="why"):
        worlds._opened("mpi")
