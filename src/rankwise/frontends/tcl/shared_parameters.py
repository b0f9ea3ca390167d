"""Parameters that several commands have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankwise.frontends.tcl import value_types
from rankwise.frontends.tcl.parameters import Parameter

TENSOR = Parameter("tensor", value_types.TENSOR, "the tensor")
NAMED_TENSOR = replace(TENSOR, complaint="Invalid tensor name")
TENSOR_HANDLE = replace(TENSOR, complaint="Invalid tensor handle")
OPERAND = replace(TENSOR, value_type=value_types.OPERAND)
GROUP = Parameter("group", value_types.STRING, 'a group of distributed_new_group; "": all ranks', "")
TAG = Parameter("tag", value_types.NATURAL, "messages match by sender and tag, in the order sent", 0)
SHAPE = Parameter("shape", value_types.SHAPE, "the size of each dimension")
DTYPE = Parameter("dtype", value_types.DTYPE, "the type of the elements", np.dtype(np.float32))
OTHER = Parameter("other", value_types.OTHER, "a tensor of a compatible shape, or a number")
DIM = Parameter(
    "dim",
    value_types.INTEGER,
    "the dimension; negative ones count from the last; by default all elements are taken",
    None,
)
KEEPDIM = Parameter("keepdim", value_types.BOOLEAN, "whether the dimension stays, with size 1", False)
FILE = Parameter("file", value_types.TEXT, "the path of a .npy file")
OP = Parameter("op", value_types.OP, "sum, mean, max, min, or product, also called prod", "sum")
DEVICE = Parameter("device", value_types.DEVICE, "where the tensor is: cpu", "cpu")
REQUIRES_GRAD = Parameter(
    "requires_grad", value_types.BOOLEAN, "whether backward computes its gradient; needs torch", False
)
NEW = (DTYPE, DEVICE, REQUIRES_GRAD)
