"""The rows of the table for the tensor commands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankwise.frontends.tcl import tensors, value_types
from rankwise.frontends.tcl.parameters import Command, Parameter
from rankwise.frontends.tcl.shared_parameters import DIM, FILE, KEEPDIM, NEW, OPERAND, OTHER, SHAPE, TENSOR

_NEW = tuple(parameter.name for parameter in NEW)

TENSORS = (
    Command(
        "tensor_create",
        tensors.create,
        "Make a tensor of given numbers.",
        (
            Parameter("data", value_types.DATA, "the numbers, row by row, as one list or as lists of lists"),
            replace(SHAPE, default=None, help="the size of each dimension; by default as in the lists"),
            *NEW,
        ),
        "a tensor",
        "puts [torch::tensor_shape [torch::tensor_create -data {1 2 3 4} -shape {2 2} -dtype float32]]\n"
        "# Output: 2 2\n"
        "puts [torch::tensor_to_list [torch::tensor_create {{1 2} {3 4}} int32]]\n"
        "# Output: 1 2 3 4",
        forms=(("data", *_NEW), ("data", "shape", *_NEW)),
    ),
    Command(
        "zeros",
        tensors.zeros,
        "Make a tensor of zeros.",
        (SHAPE, *NEW),
        "a tensor",
        "puts [torch::tensor_to_list [torch::zeros {2 2}]]\n# Output: 0.0 0.0 0.0 0.0",
    ),
    Command(
        "ones",
        tensors.ones,
        "Make a tensor of ones.",
        (SHAPE, *NEW),
        "a tensor",
        "puts [torch::tensor_to_list [torch::ones {3} int64]]\n# Output: 1 1 1",
    ),
    Command(
        "full",
        tensors.full,
        "Make a tensor with one number in all elements.",
        (SHAPE, Parameter("value", value_types.NUMBER, "the number"), *NEW),
        "a tensor",
        "puts [torch::tensor_to_list [torch::full {3} 2.5]]\n# Output: 2.5 2.5 2.5",
    ),
    Command(
        "empty",
        tensors.empty,
        "Make a tensor with undefined elements.",
        (SHAPE, *NEW),
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
            Parameter("step", value_types.NUMBER, "the difference between consecutive numbers", 1),
            *NEW,
        ),
        "a tensor of one dimension",
        "puts [torch::tensor_to_list [torch::arange 3]]\n"
        "# Output: 0.0 1.0 2.0\n"
        "puts [torch::tensor_to_list [torch::arange 1 7 2 int64]]\n"
        "# Output: 1 3 5",
        forms=(("end", *_NEW), ("start", "end", *_NEW), ("start", "end", "step", *_NEW)),
    ),
    Command(
        "rand",
        tensors.rand,
        "Make a tensor of this rank's random numbers, uniform between 0 and 1.",
        (SHAPE, *NEW),
        "a tensor of a floating-point type",
        "puts [torch::tensor_shape [torch::rand {2 3}]]\n# Output: 2 3",
    ),
    Command(
        "randn",
        tensors.randn,
        "Make a tensor of this rank's random numbers, normally distributed with mean 0 and variance 1.",
        (SHAPE, *NEW),
        "a tensor of a floating-point type",
        "puts [torch::tensor_dtype [torch::randn {2 3} float64]]\n# Output: Float64",
    ),
    Command(
        "tensor_shape",
        lambda session, tensor: tensor.shape,
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
        lambda session, tensor: tensor.size,
        "How many elements there are.",
        (TENSOR,),
        "an integer",
        "puts [torch::tensor_numel [torch::ones {2 3}]]\n# Output: 6",
    ),
    Command(
        "tensor_to_list",
        lambda session, tensor: " ".join(tensors.words_of(tensor)),
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
        (OPERAND, Parameter("shape", value_types.INTEGERS, "the new shape; one size may be -1, which is inferred")),
        "a new tensor",
        "puts [torch::tensor_shape [torch::tensor_reshape [torch::arange 6] {2 -1}]]\n# Output: 2 3",
    ),
    Command(
        "tensor_slice",
        tensors.cut,
        "The part of a tensor from start up to, but excluding, end, along one dimension.",
        (
            OPERAND,
            Parameter("dim", value_types.INTEGER, "the dimension"),
            Parameter("start", value_types.INTEGER, "the first index; negative ones count from the end"),
            Parameter(
                "end", value_types.INTEGER, "the index after the last; by default the end of the dimension", None
            ),
            Parameter("step", value_types.INTEGER, "take every step-th", 1),
        ),
        "a new tensor",
        "puts [torch::tensor_to_list [torch::tensor_slice [torch::arange 6] 0 1 4]]\n# Output: 1.0 2.0 3.0",
    ),
    Command(
        "tensor_transpose",
        tensors.transpose,
        "A tensor with two dimensions exchanged.",
        (
            OPERAND,
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
            (OPERAND, OTHER),
            "a new tensor",
            f"puts [torch::tensor_to_list [torch::tensor_{name} [torch::full {{2}} 6.0] 2]]\n# Output: {output}",
        )
        for name, function, what, output in (
            ("add", np.add, "The sum", "8.0 8.0"),
            ("sub", np.subtract, "The difference", "4.0 4.0"),
            ("mul", np.multiply, "The product", "12.0 12.0"),
            ("div", np.true_divide, "The quotient", "3.0 3.0"),
            ("eq", np.equal, "Whether the two are equal", "0 0"),
        )
    ),
    Command(
        "tensor_matmul",
        tensors.element_wise(np.matmul),
        "The matrix product.",
        (OPERAND, Parameter("other", value_types.OPERAND, "the right factor")),
        "a new tensor",
        "puts [torch::tensor_to_list [torch::tensor_matmul [torch::ones {1 3}] [torch::ones {3 2}]]]\n"
        "# Output: 3.0 3.0",
    ),
    *(
        Command(
            f"tensor_{name}",
            tensors.of_each(function),
            f"{what} of each element.",
            (OPERAND,),
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
            (OPERAND, DIM, KEEPDIM),
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
        "Free a tensor. Its handle is invalid afterwards.",
        (replace(TENSOR, value_type=value_types.TENSOR_HANDLE),),
        "the empty string",
        "torch::tensor_delete [torch::ones {2}]",
    ),
)
