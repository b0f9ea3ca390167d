"""The rows of the table for the torch::distributed_ commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankwise.frontends.tcl import collectives, value_types
from rankwise.frontends.tcl.parameters import REQUIRED, WRONG_ARGS, Command, Parameter, Wording, camel
from rankwise.frontends.tcl.shared_parameters import DTYPE, GROUP, NAMED_TENSOR, OP, SHAPE, TAG, TENSOR, TENSOR_HANDLE

COPY = "Not initialised, with one rank or simulated: a copy of the tensor."
_INVALID_OP = f"Required parameter missing: -tensor, or invalid operation. {value_types.OP.must}"

_INIT = Wording(missing="Required parameters missing: {missing}")
_MESSAGE = replace(_INIT, few="Wrong number of arguments for positional syntax. Required parameters missing: {missing}")
_ALL_REDUCE = Wording(
    missing=f"Invalid arguments: {WRONG_ARGS}, without {{missing}}",
    many=f"Invalid arguments: {WRONG_ARGS}",
    unknown='Invalid arguments: unknown option "{given}": must be -tensor, -operation or -group',
    no_value='Invalid arguments: missing value for "{given}"',
)


def _init(name: str, description: str, default: Any = REQUIRED) -> Parameter:
    complaint = f"{collectives.MISSING_OR_INVALID} Invalid -{camel(name)} parameter: {{given}}. Must be an integer."
    return Parameter(name, value_types.INTEGER, description, default, complaint)


_FACT = Wording(many=WRONG_ARGS)

_SENT = (
    replace(TENSOR, complaint="Invalid tensor handle: {given}"),
    Parameter("dst", value_types.INTEGER, "the rank that receives it"),
    TAG,
)
_RECEIVED = (SHAPE, Parameter("src", value_types.INTEGER, "the rank that sends it"), TAG, DTYPE)
_WORK = Parameter("handle", value_types.STRING, "what distributed_isend or distributed_irecv returned")
_ANY_PEER = "Not initialised, with one rank or simulated: this process receives it, as if from rank dst."
_ZEROS = (
    "Not initialised, with one rank or simulated: receives what this process sent to rank src with this tag, in order, "
    "and zeros when nothing is left."
)
_ANY_HANDLE = "Not initialised, with one rank or simulated: any handle is accepted; for one that no command returned, "

DISTRIBUTED = (
    Command(
        "distributed_init",
        collectives.init,
        "Begin distributed work with the launcher's ranks, ranks that meet at an address, or simulated ranks.",
        (
            _init("rank", "this process's rank; under a launcher, 0 is right on every rank"),
            _init("world_size", "how many ranks there are"),
            Parameter("master_addr", value_types.STRING, "the host at which ranks without a launcher meet", ""),
            _init("master_port", "the port on that host; the same on all ranks of a job", 29500),
            Parameter(
                "backend",
                value_types.BACKEND,
                f"one of {', '.join(value_types.BACKENDS)}, by default a suitable one; with one rank or simulated, "
                "any name",
                "",
            ),
        ),
        "a sentence that names the mode, the rank, the world size and the backend in use",
        'torch::distributed_init 0 1 "gloo"\n'
        "puts [torch::distributed_barrier]\n"
        "# Output: Barrier synchronized (single GPU)",
        modes="It chooses the mode: one rank if the world size is 1; otherwise real under a launcher or with an "
        "address, and simulated without. The third of three positional words is an address if it is localhost or "
        "contains a dot or a colon, else a backend.",
        wording=_INIT,
        forms=(
            ("rank", "world_size", "backend"),
            ("rank", "world_size", "master_addr", "master_port", "backend"),
        ),
    ),
    Command(
        "distributed_finalize",
        collectives.finalize,
        "End distributed work: close this session's groups and return to the state before distributed_init.",
        (),
        '"Distributed training finalized", or "Distributed not initialized"',
        'torch::distributed_init 0 1 "gloo"\n'
        "torch::distributed_finalize\n"
        "puts [torch::distributed_barrier]\n"
        "# Output: Distributed not initialized",
        wording=_FACT,
    ),
    Command(
        "distributed_barrier",
        collectives.barrier,
        "Return when every rank has called it.",
        (),
        '"Barrier synchronized (4 processes)" on 4 ranks; "Barrier synchronized (single GPU)" on one; '
        '"Barrier synchronized (simulated multi-GPU)" if the ranks are simulated; '
        '"Distributed not initialized" before distributed_init',
        "puts [torch::distributed_barrier]\n# Output: Distributed not initialized",
        modes="Waits in the real mode only.",
        errors=("Wrong number of arguments. Expected: torch::distributed_barrier",),
        wording=Wording(many="Wrong number of arguments. Expected: {usage}"),
    ),
    Command(
        "get_rank",
        lambda session: session.world.rank,
        "This process's rank.",
        (),
        "an integer; before distributed_init the launcher's rank, 0 without a launcher",
        "puts [torch::get_rank]\n# Output: 0",
        wording=_FACT,
    ),
    Command(
        "get_world_size",
        lambda session: session.world.world_size,
        "How many ranks there are.",
        (),
        "an integer; before distributed_init the launcher's number of ranks, 1 without a launcher",
        "puts [torch::get_world_size]\n# Output: 1",
        wording=_FACT,
    ),
    Command(
        "is_distributed",
        lambda session: session.world.initialized and session.world.world_size > 1,
        "Whether distributed_init was called for more than one rank.",
        (),
        "1 or 0",
        "puts [torch::is_distributed]\n# Output: 0",
        wording=_FACT,
    ),
    Command(
        "distributed_gather",
        collectives.gather,
        "Collect every rank's tensor on rank dst.",
        (
            NAMED_TENSOR,
            Parameter(
                "dst",
                value_types.INTEGER,
                "the rank that receives them; -1: every rank",
                0,
                "Invalid -dst parameter. Must be an integer.",
            ),
            GROUP,
        ),
        "on dst a tensor with a new first dimension, of the group's size; on other ranks of size 0",
        "set input [torch::ones {2 3} float32]\n"
        "puts [torch::tensor_shape [torch::distributed_gather -tensor $input]]\n"
        "# Output: 1 2 3",
        modes="Not initialised, with one rank or simulated: a dimension of 1 is added, and any dst is accepted.",
    ),
    Command(
        "distributed_scatter",
        collectives.scatter,
        "Split rank src's tensor along its first dimension, a part for each rank.",
        (
            TENSOR_HANDLE,
            Parameter(
                "src",
                value_types.INTEGER,
                "the rank whose tensor is split",
                0,
                positional_complaint="Invalid src parameter: {given}. Must be an integer.",
            ),
            GROUP,
        ),
        "this rank's part; the parts differ by at most one row, and the first ranks have the longer ones",
        "set tensor [torch::tensor_create -data {1.0 2.0 3.0 4.0} -shape {2 2} -dtype float32]\n"
        "puts [torch::tensor_to_list [torch::distributed_scatter $tensor 0]]\n"
        "# Output: 1.0 2.0 3.0 4.0",
        modes=COPY + " Any src of at least 0 is accepted.",
        errors=(collectives.NEGATIVE_SRC,),
    ),
    Command(
        "distributed_reduce_scatter",
        collectives.reduce_scatter,
        "Reduce the ranks' tensors, then split the result along its first dimension, a part for each rank.",
        (TENSOR_HANDLE, replace(OP, complaint=_INVALID_OP), GROUP),
        "this rank's part of the reduced tensor",
        "set tensor [torch::tensor_create -data {1.0 2.0 3.0 4.0} -shape {2 2} -dtype float32]\n"
        'puts [torch::tensor_shape [torch::distributed_reduce_scatter $tensor "max"]]\n'
        "# Output: 2 2",
        modes=COPY,
    ),
    Command(
        "distributed_all_reduce",
        collectives.all_reduce,
        "Reduce the ranks' tensors, with the result on every rank.",
        (replace(TENSOR, complaint="Tensor not found: {given}"), replace(OP, name="operation"), GROUP),
        "the reduced tensor; the input is not changed",
        'puts [torch::tensor_to_list [torch::distributed_all_reduce [torch::ones {2}] "sum"]]\n# Output: 1.0 1.0',
        modes=COPY,
        forms=(("tensor", "operation"),),
        wording=_ALL_REDUCE,
    ),
    Command(
        "distributed_reduce",
        collectives.reduce,
        "Reduce the ranks' tensors, with the result on rank dst.",
        (TENSOR, Parameter("dst", value_types.INTEGER, "the rank that gets the result", 0), OP, GROUP),
        "on dst the reduced tensor, on other ranks a copy of their own",
        "puts [torch::tensor_to_list [torch::distributed_reduce [torch::ones {2}] 0 sum]]\n# Output: 1.0 1.0",
        modes=COPY,
    ),
    Command(
        "distributed_broadcast",
        collectives.broadcast,
        "Give every rank root's tensor; all ranks pass the same shape and dtype.",
        (TENSOR, Parameter("root", value_types.INTEGER, "the rank whose tensor it is", 0), GROUP),
        "root's tensor; the input is not changed",
        "puts [torch::tensor_to_list [torch::distributed_broadcast [torch::ones {2}] 0]]\n# Output: 1.0 1.0",
        modes=COPY,
        forms=(("tensor", "root"),),
    ),
    Command(
        "distributed_all_gather",
        collectives.all_gather,
        "Collect every rank's tensor on every rank.",
        (TENSOR, GROUP),
        "a tensor with a new first dimension, of the group's size",
        "puts [torch::tensor_shape [torch::distributed_all_gather [torch::ones {2}]]]\n# Output: 1 2",
        modes="Not initialised, with one rank or simulated: a dimension of 1 is added.",
    ),
    Command(
        "distributed_all_to_all",
        collectives.all_to_all,
        "Split every rank's tensor along its first dimension and exchange: part j goes to rank j.",
        (TENSOR, GROUP),
        "the parts received, in the order of the ranks, concatenated along the first dimension",
        "puts [torch::tensor_to_list [torch::distributed_all_to_all [torch::arange 4]]]\n# Output: 0.0 1.0 2.0 3.0",
        modes=COPY,
    ),
    Command(
        "distributed_send",
        collectives.send,
        "Send a tensor to rank dst.",
        _SENT,
        "send_completed",
        "puts [torch::distributed_send [torch::ones {2}] 0]\n"
        "# Output: send_completed\n"
        "puts [torch::tensor_to_list [torch::distributed_recv {2} 0]]\n"
        "# Output: 1.0 1.0",
        modes=_ANY_PEER,
        wording=_MESSAGE,
    ),
    Command(
        "distributed_isend",
        collectives.isend,
        "Begin to send a tensor to rank dst, without waiting.",
        _SENT,
        "a handle for distributed_wait and distributed_test, with dst and tag in its name",
        "set sending [torch::distributed_isend -tensor [torch::ones {2}] -dst 1 -tag 7]\n"
        "puts $sending\n"
        "# Output: isend_handle_dst1_tag7\n"
        "puts [torch::distributed_wait $sending]\n"
        "# Output: send_completed",
        modes=_ANY_PEER,
        wording=_MESSAGE,
    ),
    Command(
        "distributed_recv",
        collectives.recv,
        "Receive a tensor from rank src.",
        _RECEIVED,
        "the tensor, with the given shape and dtype, which must match the message",
        "torch::distributed_send [torch::full {3} 5 int32] 0\n"
        "puts [torch::tensor_to_list [torch::distributed_recv -shape {3} -src 0 -dtype int32]]\n"
        "# Output: 5 5 5",
        modes=_ZEROS,
        forms=(("shape", "src", "tag"),),
        wording=_MESSAGE,
    ),
    Command(
        "distributed_irecv",
        collectives.irecv,
        "Begin to receive a tensor from rank src, without waiting.",
        _RECEIVED,
        "a handle for distributed_wait and distributed_test, with src and tag in its name",
        "set receiving [torch::distributed_irecv {2} 1]\n"
        "puts $receiving\n"
        "# Output: irecv_handle_src1_tag0\n"
        "torch::distributed_send [torch::ones {2}] 1\n"
        "puts [torch::tensor_to_list [torch::distributed_wait $receiving]]\n"
        "# Output: 1.0 1.0",
        modes=_ZEROS,
        forms=(("shape", "src", "tag"),),
        wording=_MESSAGE,
    ),
    Command(
        "distributed_wait",
        collectives.wait,
        "Wait until a distributed_isend or distributed_irecv is complete, and free its handle.",
        (_WORK,),
        "send_completed for a send, the received tensor for a receive",
        "set sending [torch::distributed_isend [torch::ones {2}] 0]\n"
        "puts [torch::distributed_wait $sending]\n"
        "# Output: send_completed",
        modes=_ANY_HANDLE + "the result is send_completed if its name contains isend, a tensor if it "
        "contains irecv, else operation_completed.",
        wording=_MESSAGE,
    ),
    Command(
        "distributed_test",
        collectives.test,
        "Whether a distributed_isend or distributed_irecv is complete; never waits.",
        (_WORK,),
        "true or false",
        "set sending [torch::distributed_isend [torch::ones {2}] 0]\n"
        "puts [torch::distributed_test $sending]\n"
        "# Output: true",
        modes=_ANY_HANDLE + "the result is true.",
        wording=_MESSAGE,
    ),
    Command(
        "distributed_new_group",
        collectives.new_group,
        "Make a group of some ranks, with a name. Every rank of the world must call it, in the same order.",
        (
            Parameter("name", value_types.TEXT, "the group's name from now on"),
            Parameter(
                "ranks", value_types.INTEGERS, "its ranks; in the group they are numbered 0, 1, ... in this order"
            ),
        ),
        "the name",
        "puts [torch::distributed_new_group -name workers -ranks {0}]\n# Output: workers",
        modes="Not initialised, with one rank or simulated: the group is this process alone.",
    ),
)
