"""The table of all commands: names, parameters, functions and help. Help, completion and docs are made from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankwise.frontends.tcl import collectives, helptext, tensors, value_types
from rankwise.frontends.tcl.parameters import Command, Parameter

_FLOAT32 = np.dtype(np.float32)

# ---- parameters that several commands have ----

TENSOR = Parameter("tensor", value_types.TENSOR, "the tensor")
NAMED_TENSOR = replace(TENSOR, complaint="Invalid tensor name")
TENSOR_HANDLE = replace(TENSOR, complaint="Invalid tensor handle")
GROUP = Parameter(
    "group", value_types.STRING, 'a group that distributed_new_group made; "" is the group of all ranks', ""
)
TAG = Parameter("tag", value_types.TAG, "messages match by sender and tag, in the order sent", 0)
SHAPE = Parameter("shape", value_types.SHAPE, "the size of each dimension")
DTYPE = Parameter("dtype", value_types.DTYPE, "the type of the elements", _FLOAT32)
OTHER = Parameter("other", value_types.OTHER, "a tensor of a fitting shape, or a number")
DIM = Parameter(
    "dim", value_types.INTEGER, "the dimension; negative ones count from the last; without it all elements", None
)
KEEPDIM = Parameter("keepdim", value_types.BOOLEAN, "whether the dimension stays, with size 1", False)
FILE = Parameter("file", value_types.TEXT, "the path of a .npy file")
OP = Parameter("op", value_types.OP, "sum, mean, max, min or product", "sum")

COPY = "Not initialised, with one rank or simulated: a copy of the tensor."
_INVALID_OP = f"Required parameter missing: -tensor, or invalid operation. {value_types.OP.must}"

_DISTRIBUTED = (
    Command(
        "distributed_init",
        collectives.init,
        "Begin distributed work with the launcher's ranks, ranks that meet at an address, or simulated ranks.",
        (
            Parameter("rank", value_types.INTEGER, "this process's rank; under a launcher, 0 is right on every rank"),
            Parameter("world_size", value_types.INTEGER, "how many ranks there are"),
            Parameter("master_addr", value_types.STRING, "the host at which ranks without a launcher meet", ""),
            Parameter("master_port", value_types.INTEGER, "its port; the same on all ranks of a job", 29500),
            Parameter(
                "backend",
                value_types.BACKEND,
                f"one of {', '.join(value_types.BACKENDS)}; by default a suitable one",
                "",
            ),
        ),
        "a sentence with mode, rank, world size and the backend in use",
        'torch::distributed_init 0 1 "gloo"\n'
        "puts [torch::distributed_barrier]\n"
        "# Output: Barrier synchronized (single GPU)",
        modes="It chooses the mode: one rank for a world size of 1; otherwise real under a launcher or with an "
        "address, and simulated without.",
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
    ),
    Command(
        "get_rank",
        collectives.get_rank,
        "This process's rank.",
        (),
        "an integer; before distributed_init the launcher's rank, 0 without a launcher",
        "puts [torch::get_rank]\n# Output: 0",
    ),
    Command(
        "get_world_size",
        collectives.get_world_size,
        "How many ranks there are.",
        (),
        "an integer; before distributed_init the launcher's number of ranks, 1 without a launcher",
        "puts [torch::get_world_size]\n# Output: 1",
    ),
    Command(
        "is_distributed",
        collectives.is_distributed,
        "Whether distributed_init was called for more than one rank.",
        (),
        "1 or 0",
        "puts [torch::is_distributed]\n# Output: 0",
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
        (TENSOR_HANDLE, Parameter("src", value_types.INTEGER, "the rank whose tensor is split", 0), GROUP),
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
        (TENSOR, replace(OP, name="operation"), GROUP),
        "the reduced tensor; the input is not changed",
        'puts [torch::tensor_to_list [torch::distributed_all_reduce [torch::ones {2}] "sum"]]\n# Output: 1.0 1.0',
        modes=COPY,
        forms=(("tensor", "operation"),),
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
        (TENSOR, Parameter("dst", value_types.INTEGER, "the rank that receives it"), TAG),
        "the empty string",
        "torch::distributed_send [torch::ones {2}] 0\n"
        "puts [torch::tensor_to_list [torch::distributed_recv {2} 0]]\n"
        "# Output: 1.0 1.0",
        modes="Not initialised, with one rank or simulated: this process receives it, as if from rank dst.",
    ),
    Command(
        "distributed_isend",
        collectives.isend,
        "Begin to send a tensor to rank dst, without waiting.",
        (TENSOR, Parameter("dst", value_types.INTEGER, "the rank that receives it"), TAG),
        "a handle for distributed_wait and distributed_test",
        "set sending [torch::distributed_isend -tensor [torch::ones {2}] -dst 0 -tag 7]\n"
        "set receiving [torch::distributed_irecv -shape {2} -src 0 -tag 7]\n"
        "puts [torch::tensor_to_list [torch::distributed_wait $receiving]]\n"
        "# Output: 1.0 1.0\n"
        "torch::distributed_wait $sending",
        modes="As distributed_send.",
    ),
    Command(
        "distributed_recv",
        collectives.recv,
        "Receive a tensor from rank src.",
        (SHAPE, Parameter("src", value_types.INTEGER, "the rank that sends it"), TAG, DTYPE),
        "the tensor, with the given shape and dtype, which must match the message",
        "torch::distributed_send [torch::full {3} 5 int32] 0\n"
        "puts [torch::tensor_to_list [torch::distributed_recv -shape {3} -src 0 -dtype int32]]\n"
        "# Output: 5 5 5",
        modes="Not initialised, with one rank or simulated: what this process sent to rank src.",
        forms=(("shape", "src", "tag"),),
    ),
    Command(
        "distributed_irecv",
        collectives.irecv,
        "Begin to receive a tensor from rank src, without waiting.",
        (SHAPE, Parameter("src", value_types.INTEGER, "the rank that sends it"), TAG, DTYPE),
        "a handle for distributed_wait and distributed_test",
        "set receiving [torch::distributed_irecv {2} 0]\n"
        "puts [torch::distributed_test $receiving]\n"
        "# Output: 0\n"
        "torch::distributed_send [torch::ones {2}] 0\n"
        "puts [torch::tensor_to_list [torch::distributed_wait $receiving]]\n"
        "# Output: 1.0 1.0",
        modes="As distributed_recv.",
        forms=(("shape", "src", "tag"),),
    ),
    Command(
        "distributed_wait",
        collectives.wait,
        "Wait until a distributed_isend or distributed_irecv is complete, and free its handle.",
        (Parameter("handle", value_types.WORK_HANDLE, "what distributed_isend or distributed_irecv gave"),),
        "the tensor received; the empty string for distributed_isend",
        "set sending [torch::distributed_isend [torch::ones {2}] 0]\n"
        "puts [string length [torch::distributed_wait $sending]]\n"
        "# Output: 0",
    ),
    Command(
        "distributed_test",
        collectives.test,
        "Whether a distributed_isend or distributed_irecv is complete; never waits.",
        (Parameter("handle", value_types.WORK_HANDLE, "what distributed_isend or distributed_irecv gave"),),
        "1 or 0",
        "set sending [torch::distributed_isend [torch::ones {2}] 0]\n"
        "puts [torch::distributed_test $sending]\n"
        "# Output: 1",
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

_TENSORS = (
    Command(
        "tensor_create",
        tensors.create,
        "Make a tensor of given numbers.",
        (
            Parameter("data", value_types.DATA, "the numbers, row by row, as one list or as lists of lists"),
            replace(SHAPE, default=None, help="the size of each dimension; by default as in the lists"),
            DTYPE,
        ),
        "a tensor",
        "puts [torch::tensor_shape [torch::tensor_create -data {1 2 3 4} -shape {2 2} -dtype float32]]\n"
        "# Output: 2 2\n"
        "puts [torch::tensor_to_list [torch::tensor_create {{1 2} {3 4}} int32]]\n"
        "# Output: 1 2 3 4",
        forms=(("data", "dtype"), ("data", "shape", "dtype")),
    ),
    Command(
        "zeros",
        tensors.zeros,
        "Make a tensor of zeros.",
        (SHAPE, DTYPE),
        "a tensor",
        "puts [torch::tensor_to_list [torch::zeros {2 2}]]\n# Output: 0.0 0.0 0.0 0.0",
    ),
    Command(
        "ones",
        tensors.ones,
        "Make a tensor of ones.",
        (SHAPE, DTYPE),
        "a tensor",
        "puts [torch::tensor_to_list [torch::ones {3} int64]]\n# Output: 1 1 1",
    ),
    Command(
        "full",
        tensors.full,
        "Make a tensor with one number in all elements.",
        (SHAPE, Parameter("value", value_types.NUMBER, "the number"), DTYPE),
        "a tensor",
        "puts [torch::tensor_to_list [torch::full {3} 2.5]]\n# Output: 2.5 2.5 2.5",
    ),
    Command(
        "empty",
        tensors.empty,
        "Make a tensor with undefined elements.",
        (SHAPE, DTYPE),
        "a tensor",
        "puts [torch::tensor_shape [torch::empty {2 3}]]\n# Output: 2 3",
    ),
    Command(
        "arange",
        tensors.arange,
        "Make a tensor of the numbers from start up to, but excluding, end.",
        (
            Parameter("end", value_types.NUMBER, "where to end"),
            Parameter("start", value_types.NUMBER, "the first number", 0),
            Parameter("step", value_types.NUMBER, "the difference of two numbers", 1),
            DTYPE,
        ),
        "a tensor of one dimension",
        "puts [torch::tensor_to_list [torch::arange 3]]\n"
        "# Output: 0.0 1.0 2.0\n"
        "puts [torch::tensor_to_list [torch::arange 1 7 2 int64]]\n"
        "# Output: 1 3 5",
        forms=(("end", "dtype"), ("start", "end", "dtype"), ("start", "end", "step", "dtype")),
    ),
    Command(
        "rand",
        tensors.rand,
        "Make a tensor of random numbers, uniform in 0 to 1; each rank draws its own.",
        (SHAPE, DTYPE),
        "a tensor of a floating-point type",
        "puts [torch::tensor_shape [torch::rand {2 3}]]\n# Output: 2 3",
    ),
    Command(
        "randn",
        tensors.randn,
        "Make a tensor of random numbers, normal with mean 0 and variance 1; each rank draws its own.",
        (SHAPE, DTYPE),
        "a tensor of a floating-point type",
        "puts [torch::tensor_dtype [torch::randn {2 3} float64]]\n# Output: Float64",
    ),
    Command(
        "tensor_shape",
        tensors.shape,
        "The size of each dimension.",
        (TENSOR,),
        "a list of integers",
        "puts [torch::tensor_shape [torch::ones {2 3}]]\n# Output: 2 3",
    ),
    Command(
        "tensor_dtype",
        tensors.dtype,
        "The type of the elements.",
        (TENSOR,),
        "Float32, Int64, Bool, ...",
        "puts [torch::tensor_dtype [torch::ones {2 3}]]\n# Output: Float32",
    ),
    Command(
        "tensor_numel",
        tensors.numel,
        "How many elements there are.",
        (TENSOR,),
        "an integer",
        "puts [torch::tensor_numel [torch::ones {2 3}]]\n# Output: 6",
    ),
    Command(
        "tensor_to_list",
        tensors.to_list,
        "The elements, row by row.",
        (TENSOR,),
        "a flat list of numbers; Bool gives 1 and 0",
        "puts [torch::tensor_to_list [torch::ones {2 2}]]\n# Output: 1.0 1.0 1.0 1.0",
    ),
    Command(
        "tensor_item",
        tensors.item,
        "The only element.",
        (TENSOR,),
        "a number",
        "puts [torch::tensor_item [torch::tensor_create 5.0]]\n# Output: 5.0",
    ),
    Command(
        "tensor_print",
        tensors.print_text,
        "A tensor as readable text, shortened if long. Nothing is printed.",
        (TENSOR,),
        "text: the elements in brackets, dtype and shape",
        "puts [torch::tensor_print [torch::ones {2 2}]]\n"
        "# Output: [[1. 1.]\n"
        "# Output:  [1. 1.]]\n"
        "# Output: Float32 {2 2}",
    ),
    Command(
        "tensor_reshape",
        tensors.reshape,
        "The same elements in another shape.",
        (TENSOR, Parameter("shape", value_types.INTEGERS, "the new shape; one size may be -1, which is worked out")),
        "a new tensor",
        "puts [torch::tensor_shape [torch::tensor_reshape [torch::arange 6] {2 -1}]]\n# Output: 2 3",
    ),
    Command(
        "tensor_slice",
        tensors.cut,
        "The part of a tensor from start up to, but excluding, end, along one dimension.",
        (
            TENSOR,
            Parameter("dim", value_types.INTEGER, "the dimension"),
            Parameter("start", value_types.INTEGER, "the first place; negative ones count from the end"),
            Parameter("end", value_types.INTEGER, "the place after the last; by default all that is left", None),
            Parameter("step", value_types.INTEGER, "take each step-th", 1),
        ),
        "a new tensor",
        "puts [torch::tensor_to_list [torch::tensor_slice [torch::arange 6] 0 1 4]]\n# Output: 1.0 2.0 3.0",
    ),
    Command(
        "tensor_transpose",
        tensors.transpose,
        "A tensor with two dimensions exchanged.",
        (
            TENSOR,
            Parameter("dim0", value_types.INTEGER, "one of them", 0),
            Parameter("dim1", value_types.INTEGER, "the other", 1),
        ),
        "a new tensor",
        "puts [torch::tensor_shape [torch::tensor_transpose [torch::ones {2 3}]]]\n# Output: 3 2",
    ),
    *(
        Command(
            f"tensor_{name}",
            tensors.element_wise(function),
            f"{what}, element by element.",
            (TENSOR, OTHER),
            "a new tensor",
            f"puts [torch::tensor_to_list [torch::tensor_{name} [torch::full {{2}} 6.0] 2]]\n# Output: {output}",
        )
        for name, function, what, output in (
            ("add", np.add, "The sum", "8.0 8.0"),
            ("sub", np.subtract, "The difference", "4.0 4.0"),
            ("mul", np.multiply, "The product", "12.0 12.0"),
            ("div", np.true_divide, "The quotient", "3.0 3.0"),
            ("eq", np.equal, "Whether two are equal", "0 0"),
        )
    ),
    Command(
        "tensor_matmul",
        tensors.matmul,
        "The matrix product.",
        (TENSOR, Parameter("other", value_types.TENSOR, "the right factor")),
        "a new tensor",
        "puts [torch::tensor_to_list [torch::tensor_matmul [torch::ones {1 3}] [torch::ones {3 2}]]]\n"
        "# Output: 3.0 3.0",
    ),
    *(
        Command(
            f"tensor_{name}",
            tensors.of_each(function),
            f"{what} of each element.",
            (TENSOR,),
            "a new tensor",
            f"puts [torch::tensor_to_list [torch::tensor_{name} [torch::ones {{1}} float64]]]\n# Output: {output}",
        )
        for name, function, what, output in (
            ("exp", np.exp, "e to the power", "2.718281828459045"),
            ("log", np.log, "The natural logarithm", "0.0"),
        )
    ),
    *(
        Command(
            f"tensor_{name}",
            tensors.along(function),
            f"{what}, of all elements or along one dimension.",
            (TENSOR, DIM, KEEPDIM),
            "a new tensor",
            f"puts [torch::tensor_to_list [torch::tensor_{name} [torch::tensor_create {{{{1 2}} {{3 4}}}}] 1]]\n"
            f"# Output: {output}",
        )
        for name, function, what, output in (
            ("sum", np.sum, "The sum", "3.0 7.0"),
            ("mean", np.mean, "The mean", "1.5 3.5"),
            ("max", np.max, "The largest element", "2.0 4.0"),
            ("argmax", np.argmax, "The index of the largest element", "1 1"),
        )
    ),
    Command(
        "tensor_save",
        tensors.save,
        "Write a tensor to a file, as numpy.save does.",
        (TENSOR, FILE),
        "the empty string",
        "torch::tensor_save [torch::ones {2}] ones.npy\n"
        "puts [torch::tensor_to_list [torch::tensor_load ones.npy]]\n"
        "# Output: 1.0 1.0",
    ),
    Command(
        "tensor_load",
        tensors.load,
        "Read a tensor from a file that tensor_save or numpy.save wrote.",
        (FILE,),
        "a tensor of the file's shape and dtype",
        "torch::tensor_save [torch::ones {2} int16] ones.npy\n"
        "puts [torch::tensor_dtype [torch::tensor_load ones.npy]]\n"
        "# Output: Int16",
    ),
    Command(
        "tensor_delete",
        tensors.delete,
        "Free a tensor. Its handle means nothing afterwards.",
        (replace(TENSOR, value_type=value_types.TENSOR_HANDLE),),
        "the empty string",
        "torch::tensor_delete [torch::ones {2}]",
    ),
)

_HELP = Command(
    "help",
    helptext.command_help,
    "Print the commands, or the usage of one and an example.",
    (Parameter("command", value_types.STRING, "a command, with or without torch::", ""),),
    "the empty string; the text goes to standard output",
    "torch::help distributed_gather",
    prints=True,
)

COMMANDS = {command.name: command for command in (*_DISTRIBUTED, *_TENSORS, _HELP)}
"""Every command by its snake_case name."""

if __name__ == "__main__":
    print(helptext.reference(COMMANDS))
