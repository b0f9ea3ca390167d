"""The results and error texts that the related commands promise, and messages in the modes of one process."""

from __future__ import annotations

import pytest

from rankwise.frontends.tcl.session import Session
from tcl_calls import call

MODES = {"not initialised": (), "one rank": ("0", "1"), "simulated": ("0", "4", "nccl")}


@pytest.fixture(params=MODES)
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    """In each of the one-process modes."""
    if words := MODES[request.param]:
        call(session, "distributed_init", *words)
    call(session, "ones", "2 2")
    return session


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("distributed_init 0", ["Required parameters missing: -worldSize"]),
        ("distributed_init -rank 0", ["Required parameters missing: -worldSize"]),
        ("distributed_init", ["Required parameters missing: -rank, -worldSize"]),
        (
            "distributed_init -1 4",
            ["Required parameters missing", 'Invalid -rank parameter: "-1". Must be from 0 to 3'],
        ),
        ("distributed_init 4 4", ["Required parameters missing", 'Invalid -rank parameter: "4". Must be from 0 to 3']),
        (
            "distributed_init 0 0",
            ["Required parameters missing", 'Invalid -worldSize parameter: "0". Must be at least'],
        ),
        ("distributed_init x 4", ["Required parameters missing", 'Invalid -rank parameter: "x". Must be an integer']),
        ("distributed_init 0 2 localhost 0", ["Required parameters missing", 'Invalid -masterPort parameter: "0"']),
        ("distributed_init 0 2 localhost 99999", ["Required parameters missing", "Must be from 1 to 65535"]),
        ("get_rank more", ['wrong # args: should be "torch::get_rank"']),
        ("get_world_size more", ["wrong # args"]),
        ("is_distributed more", ["wrong # args"]),
        ("distributed_send tensor0", ["Wrong number of arguments", "-dst"]),
        ("distributed_send tensor0 1 2 3", ["Wrong number of arguments"]),
        ("distributed_send -tensor tensor0", ["Required parameters missing: -dst"]),
        ("distributed_send", ["Wrong number of arguments", "Required parameters missing: -tensor, -dst"]),
        ("distributed_send nothing 1", ['Invalid tensor handle: "nothing"']),
        ("distributed_isend -tensor nothing -dst 1", ['Invalid tensor handle: "nothing"']),
        ("distributed_send tensor0 x", ['Invalid -dst parameter: "x"']),
        ("distributed_isend -tensor tensor0 -dst x", ['Invalid -dst parameter: "x"']),
        ("distributed_send tensor0 1 x", ['Invalid -tag parameter: "x"']),
        ("distributed_irecv 2", ["Wrong number of arguments"]),
        ("distributed_recv -src 1", ["Required parameters missing: -shape"]),
        ("distributed_recv 2 x", ['Invalid -src parameter: "x"']),
        ("distributed_wait", ["Wrong number of arguments", "Required parameters missing: -handle"]),
        ("distributed_test a b", ["Wrong number of arguments"]),
        ("distributed_all_reduce nothing", ['Tensor not found: "nothing"']),
        ("distributed_all_reduce", ["Invalid arguments", "wrong # args", "-tensor"]),
        ("distributed_all_reduce -operation sum", ["Invalid arguments", "-tensor"]),
        ("distributed_all_reduce tensor0 sum more", ["Invalid arguments", "wrong # args"]),
        ("distributed_all_reduce -fly 1", ['unknown option "-fly"']),
        ("distributed_all_reduce -tensor", ['missing value for "-tensor"']),
        ("distributed_scatter tensor0 bad", ['Invalid src parameter: "bad"']),
        ("distributed_scatter -tensor tensor0 -src bad", ['Invalid -src parameter: "bad"']),
    ],
)
def test_error_texts_contain_the_words_of_the_page(session: Session, words: str, parts: list[str]) -> None:
    name, *rest = words.split()
    code, text, why = session.answer(name, rest)
    assert (code, why) == ("error", "RANKWISE ValueError")
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("name", ["custom_backend", "NCCL", "gloo"])
def test_one_process_takes_any_backend_and_repeats_its_name(session: Session, name: str) -> None:
    one = call(session, "distributed_init", "0", "1", name)
    assert one == f"Distributed training initialized (single GPU): rank=0, world_size=1, backend={name}"
    assert f"backend={name}" in call(session, "distributed_init", "0", "1", "127.0.0.1", "29500", name)
    several = call(session, "distributed_init", "-rank", "1", "-worldSize", "4", "-backend", name)
    assert f"rank=1, world_size=4, backend=emulated_{name} (Note: " in several
    assert f"backend={name};" in several


def test_messages_are_kept_in_order_and_by_tag_before_receives_give_zeros(session: Session) -> None:
    def received(*words: str) -> str:
        return call(session, "tensor_to_list", call(session, "distributed_recv", *words))

    for number, peer, tag in (("1", "3", "0"), ("2", "3", "0"), ("3", "3", "9"), ("4", "-2", "0")):
        assert call(session, "distributed_send", call(session, "full", "1", number), peer, tag) == "send_completed"
    assert received("1", "3", "9") == "3.0"
    assert received("-src", "3", "-shape", "1") == "1.0"
    assert received("1", "3", "0") == "2.0"
    assert received("1", "-2") == "4.0"
    assert received("2 1", "3") == "0.0 0.0"
    assert received("1", "77", "9") == "0.0"


def test_a_kept_message_of_another_kind_is_not_lost(session: Session) -> None:
    call(session, "distributed_send", call(session, "full", "2", "5", "int32"), "1", "5")
    code, text, _ = session.answer("distributed_recv", ["3", "1", "5"])
    assert (code, text) == ("error", "The message is int32 {2}, not float32 {3}")
    found = call(session, "distributed_recv", "-shape", "2 1", "-src", "1", "-tag", "5", "-dtype", "int32")
    assert call(session, "tensor_to_list", found) == "5 5"


def test_handles_name_peer_and_tag_and_stand_for_operations_in_order(session: Session) -> None:
    tensor = call(session, "full", "2", "7")
    assert call(session, "distributed_isend", "tensor0", "2") == "isend_handle_dst2_tag0"
    assert call(session, "distributed_isend", "-dst", "1", "-tag", "4", "-tensor", tensor) == "isend_handle_dst1_tag4"
    for shape in ("2 1", "3"):
        assert call(session, "distributed_irecv", shape, "1", "4") == "irecv_handle_src1_tag4"
    assert call(session, "distributed_test", "irecv_handle_src1_tag4") == "true"
    assert call(session, "distributed_wait", "-handle", "isend_handle_dst1_tag4") == "send_completed"
    shapes = [call(session, "tensor_shape", call(session, "distributed_wait", "irecv_handle_src1_tag4")) for _ in "ab"]
    assert shapes == ["2 1", "3"]


def test_any_handle_is_taken(session: Session) -> None:
    assert call(session, "distributed_wait", "isend_handle_of_nobody") == "send_completed"
    assert call(session, "distributed_wait", "work9") == "operation_completed"
    assert call(session, "tensor_to_list", call(session, "distributed_wait", "irecv_handle_src9_tag9")) == "0.0"
    assert call(session, "distributed_test", "anything") == "true"


def test_a_send_keeps_what_was_sent(session: Session) -> None:
    """An optimizer writes parameters in place; a message that is under way does not change."""
    pytest.importorskip("torch")
    x = call(session, "tensor_create", "-data", "1 2", "-requiresGrad", "1")
    for command in ("distributed_isend", "distributed_send"):
        call(session, command, x, "1")
    call(session, "backward", call(session, "tensor_sum", x))
    call(session, "optimizer_step", call(session, "optimizer_sgd", x, "0.5"))
    assert call(session, "tensor_to_list", x) == "0.5 1.5"
    for _ in range(2):
        assert call(session, "tensor_to_list", call(session, "distributed_recv", "2", "1")) == "1.0 2.0"
