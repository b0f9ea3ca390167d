"""The rows of the table for training: modules, losses, gradients, optimizers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rankwise.frontends.tcl import models, optimizers, value_types
from rankwise.frontends.tcl.parameters import Command, Parameter
from rankwise.frontends.tcl.shared_parameters import DTYPE, OPERAND

_MODEL = Parameter("model", value_types.MODULE, "the module")
_INPUT = replace(OPERAND, name="input")
_OPTIONAL_INPUT = Parameter("input", value_types.OPERAND, "the tensor; without it, the result is a module", None)
_TARGET = Parameter("target", value_types.OPERAND, "the expected values, in a tensor of the input's shape")
_CLASSES = Parameter("target", value_types.TENSOR, "the true class of each row, in a tensor of integers")
_REDUCTION = Parameter(
    "reduction", value_types.REDUCTION, "mean or sum over the rows; none: the loss of each row", "mean"
)
_PARAMETERS = Parameter("parameters", value_types.TENSORS, "the tensors to train, such as model_parameters returns")
_OPTIMIZER = Parameter("optimizer", value_types.OPTIMIZER, "the optimizer")
_FILE = Parameter("file", value_types.TEXT, "the path of the file")


def _number(name: str, description: str, default: float) -> Parameter:
    return Parameter(name, value_types.FINITE, description, default)


_LR = Parameter("lr", value_types.FINITE, "the learning rate")
_L2 = "the parameters times this are added to the gradients"

_MODULES = (
    Command(
        "linear",
        models.linear,
        "Make a linear layer with random weights, which are the same on all ranks after the same manual_seed.",
        (
            Parameter("in_features", value_types.SIZE, "the size of an input row"),
            Parameter("out_features", value_types.SIZE, "the size of an output row"),
            Parameter("bias", value_types.BOOLEAN, "whether a bias is added", True),
            DTYPE,
        ),
        "a module",
        "set layer [torch::linear 3 2]\n"
        "puts [torch::tensor_shape [torch::layer_forward $layer [torch::ones {5 3}]]]\n"
        "# Output: 5 2",
    ),
    *(
        Command(
            name,
            models.activation(name),
            f"{what}; without a tensor, a module that computes it.",
            (_OPTIONAL_INPUT,),
            "a tensor; without an input, a module",
            f"puts [torch::tensor_to_list [torch::{name} [torch::tensor_create {{-1.0 0.0}}]]]\n# Output: {output}",
        )
        for name, what, output in (
            ("relu", "The larger of 0 and each element", "0.0 0.0"),
            ("sigmoid", "The logistic function of each element", "0.26894143 0.5"),
            ("tanh", "The hyperbolic tangent of each element", "-0.7615942 0.0"),
        )
    ),
    Command(
        "dropout",
        models.dropout,
        "Set random elements to 0 and scale the others up; without a tensor, make a module that does so.",
        (
            _OPTIONAL_INPUT,
            _number("p", "the probability that an element becomes 0", 0.5),
            Parameter("training", value_types.BOOLEAN, "with 0, every element keeps its value", True),
        ),
        "a tensor; without an input, a module, which drops nothing after model_eval",
        "puts [torch::tensor_to_list [torch::dropout [torch::ones {3}] 0.5 0]]\n# Output: 1.0 1.0 1.0",
        forms=(("input", "p", "training"), ("p",)),
    ),
    Command(
        "sequential",
        models.sequential,
        "Make a module that applies others one after the other.",
        (Parameter("modules", value_types.MODULES, "a list of modules", ()),),
        "a module",
        "set model [torch::sequential [list [torch::linear 3 4] [torch::relu] [torch::linear 4 1]]]\n"
        "puts [torch::tensor_shape [torch::model_forward $model [torch::ones {5 3}]]]\n"
        "# Output: 5 1",
    ),
    Command(
        "layer_forward",
        lambda session, layer, input: models.model_forward(session, layer, input),
        "Apply a module to a tensor.",
        (replace(_MODEL, name="layer"), _INPUT),
        "a tensor",
        "puts [torch::tensor_to_list [torch::layer_forward [torch::relu] [torch::tensor_create {-1 2}]]]\n"
        "# Output: 0.0 2.0",
    ),
    Command(
        "model_forward",
        models.model_forward,
        "Apply a module to a tensor, as layer_forward does.",
        (_MODEL, _INPUT),
        "a tensor",
        "set model [torch::sequential [list [torch::linear 3 4] [torch::tanh]]]\n"
        "puts [torch::tensor_shape [torch::model_forward -model $model -input [torch::ones {5 3}]]]\n"
        "# Output: 5 4",
    ),
    Command(
        "model_train",
        partial(models.set_mode, training=True),
        "Put a model in training mode, the mode of a new module: dropout drops elements.",
        (_MODEL,),
        "OK",
        "puts [torch::model_train [torch::dropout 0.5]]\n# Output: OK",
    ),
    Command(
        "model_eval",
        partial(models.set_mode, training=False),
        "Put a model in evaluation mode: dropout drops nothing.",
        (_MODEL,),
        "OK",
        "set model [torch::dropout 0.5]\n"
        "torch::model_eval $model\n"
        "puts [torch::tensor_to_list [torch::model_forward $model [torch::ones {3}]]]\n"
        "# Output: 1.0 1.0 1.0",
    ),
    Command(
        "model_parameters",
        models.parameters,
        "The tensors that training changes: weights and biases.",
        (_MODEL,),
        "a list of tensors; they change when an optimizer steps",
        "foreach parameter [torch::model_parameters [torch::linear 3 2]] {puts [torch::tensor_shape $parameter]}\n"
        "# Output: 2 3\n"
        "# Output: 2",
    ),
    Command(
        "model_gradients",
        models.gradients,
        "All gradients of a model in one flat tensor, in the order of model_parameters. It is padded with zeros to a "
        "multiple of the world size, so that distributed_reduce_scatter gives every rank the same number.",
        (_MODEL,),
        "a tensor of one dimension",
        "set model [torch::linear 3 1]\n"
        "torch::backward [torch::tensor_sum [torch::model_forward $model [torch::ones {2 3}]]]\n"
        "puts [torch::tensor_to_list [torch::model_gradients $model]]\n"
        "# Output: 2.0 2.0 2.0 2.0",
    ),
    Command(
        "model_save",
        models.save,
        "Write a model to a file, atomically. Only this rank writes; one rank's file is enough, because all ranks have "
        "the same parameters, and any number of ranks can load it.",
        (_MODEL, _FILE),
        "OK",
        "puts [torch::model_save [torch::linear 3 2] model.pt]\n# Output: OK",
    ),
    Command(
        "model_load",
        models.load,
        "Read a file that model_save wrote: make a new model of it, or replace the parameters of a model with the same "
        "layers.",
        (_FILE, Parameter("model", value_types.MODULE_HANDLE, "the module whose parameters are replaced", None)),
        "the module",
        "torch::model_save [torch::linear 3 2] model.pt\n"
        "set model [torch::model_load model.pt]\n"
        "puts [torch::tensor_shape [torch::model_forward $model [torch::ones {5 3}]]]\n"
        "# Output: 5 2\n"
        "puts [expr {[torch::model_load $model model.pt] eq $model}]\n"
        "# Output: 1",
        forms=(("model", "file"), ("file",)),
    ),
)

_GRADIENTS = (
    Command(
        "mse_loss",
        models.mse_loss,
        "The mean squared difference of two tensors.",
        (_INPUT, _TARGET, replace(_REDUCTION, help="mean or sum over the elements; none: the loss of each element")),
        "a tensor",
        "puts [torch::tensor_item [torch::mse_loss [torch::zeros {2}] [torch::tensor_create {1 3}]]]\n# Output: 5.0",
    ),
    Command(
        "cross_entropy_loss",
        models.cross_entropy_loss,
        "The cross entropy of scores (logits), with a row per sample and a column per class, and the true classes.",
        (
            _INPUT,
            _CLASSES,
            Parameter("weight", value_types.WEIGHTS, "a weight for each class; an empty string for none", None),
            _REDUCTION,
        ),
        "a tensor",
        "set scores [torch::tensor_create {{0 0} {0 0}} float64]\n"
        "puts [torch::tensor_item [torch::cross_entropy_loss $scores [torch::tensor_create {0 1} int64]]]\n"
        "# Output: 0.6931471805599453",
    ),
    Command(
        "loss_function",
        models.loss_function,
        "cross_entropy_loss if the targets are integers, else mse_loss, with the reduction mean.",
        (_INPUT, replace(_TARGET, help="classes, or values in a tensor of the input's shape")),
        "a tensor",
        "puts [torch::tensor_item [torch::loss_function [torch::zeros {2}] [torch::tensor_create {1 3}]]]\n"
        "# Output: 5.0",
    ),
    *(
        Command(
            name,
            models.backward,
            "Compute the gradients of this tensor with respect to the tensors that require them. They are added to "
            "those of earlier calls, until optimizer_zero_grad clears them.",
            (replace(_INPUT, help="a tensor of one element, usually a loss"),),
            "OK",
            "set x [torch::tensor_create -data {1 2} -requiresGrad true]\n"
            f"torch::{name} [torch::tensor_sum [torch::tensor_mul $x $x]]\n"
            "puts [torch::tensor_to_list [torch::tensor_grad $x]]\n"
            "# Output: 2.0 4.0",
        )
        for name in ("backward", "tensor_backward")
    ),
    Command(
        "tensor_grad",
        models.tensor_grad,
        "The gradient of a tensor that requires one: a parameter, or a tensor made with -requiresGrad.",
        (_INPUT,),
        "a tensor of the same shape",
        "set layer [torch::linear 1 1]\n"
        "torch::backward [torch::tensor_sum [torch::layer_forward $layer [torch::full {1 1} 3.0]]]\n"
        "puts [torch::tensor_to_list [torch::tensor_grad [lindex [torch::model_parameters $layer] 0]]]\n"
        "# Output: 3.0",
    ),
    Command(
        "manual_seed",
        models.manual_seed,
        "Seed this rank's random numbers: rand's and randn's, and torch's if it is installed.",
        (Parameter("seed", value_types.NATURAL, "the seed"),),
        "ok",
        "puts [torch::manual_seed 7]\n"
        "# Output: ok\n"
        "set first [torch::tensor_to_list [torch::rand {3}]]\n"
        "torch::manual_seed 7\n"
        "puts [expr {[torch::tensor_to_list [torch::rand {3}]] eq $first}]\n"
        "# Output: 1",
    ),
)

_OPTIMIZERS = (
    Command(
        "optimizer_sgd",
        optimizers.sgd,
        "Make an optimizer: stochastic gradient descent.",
        (
            _PARAMETERS,
            _LR,
            _number("momentum", "the momentum factor", 0.0),
            _number("dampening", "the momentum takes up the gradient times 1 - dampening", 0.0),
            _number("weight_decay", _L2, 0.0),
            Parameter(
                "nesterov",
                value_types.BOOLEAN,
                "whether the momentum is Nesterov's; needs a momentum, and no dampening",
                False,
            ),
        ),
        "an optimizer",
        "set x [torch::tensor_create -data {1 2} -requiresGrad 1]\n"
        "set optimizer [torch::optimizer_sgd $x 0.5]\n"
        "torch::backward [torch::tensor_sum $x]\n"
        "torch::optimizer_step $optimizer\n"
        "puts [torch::tensor_to_list $x]\n"
        "# Output: 0.5 1.5",
    ),
    *(
        Command(
            f"optimizer_{name.lower()}",
            optimizers.adaptive(name),
            f"Make an optimizer: {name}.",
            (
                _PARAMETERS,
                _LR,
                _number("beta1", "the decay rate of the running mean of the gradients", 0.9),
                _number("beta2", "the decay rate of the running mean of their squares", 0.999),
                _number("weight_decay", decay_help, decay),
            ),
            "an optimizer",
            "set model [torch::linear 3 2]\n"
            f"set optimizer [torch::optimizer_{name.lower()} -parameters [torch::model_parameters $model] -lr 0.001]\n"
            "torch::backward [torch::tensor_sum [torch::model_forward $model [torch::ones {1 3}]]]\n"
            "puts [torch::optimizer_step $optimizer]\n"
            "# Output: OK",
        )
        for name, decay_help, decay in (
            ("Adam", _L2, 0.0),
            ("AdamW", "each step first shrinks the parameters by lr times this", 0.01),
        )
    ),
    Command(
        "optimizer_step",
        optimizers.step,
        "Change the parameters by one step. Without gradients, or with all of them, this rank steps all parameters. "
        "With its shard of them, which distributed_reduce_scatter of model_gradients returns, it steps its shard of "
        "the parameters and the ranks gather all shards (ZeRO stage 1), so all ranks must call it.",
        (
            _OPTIMIZER,
            Parameter(
                "gradients",
                value_types.TENSOR,
                "all gradients, or this rank's shard of them; by default what this rank's backward computed",
                None,
            ),
        ),
        "OK",
        "set model [torch::linear 3 1]\n"
        "set optimizer [torch::optimizer_sgd [torch::model_parameters $model] 0.1]\n"
        "torch::backward [torch::tensor_sum [torch::model_forward $model [torch::ones {1 3}]]]\n"
        'set aggregated [torch::distributed_reduce_scatter [torch::model_gradients $model] "sum"]\n'
        "puts [torch::optimizer_step $optimizer $aggregated]\n"
        "# Output: OK",
        modes="Not initialised, with one rank or simulated: the shard is all gradients.",
    ),
    Command(
        "optimizer_zero_grad",
        optimizers.zero_grad,
        "Clear the gradients, before the next backward.",
        (
            _OPTIMIZER,
            Parameter("set_to_none", value_types.BOOLEAN, "free them; with 0 they become zeros", True),
        ),
        "OK",
        "set x [torch::ones {2} float32 cpu 1]\n"
        "set optimizer [torch::optimizer_sgd $x 0.1]\n"
        "torch::backward [torch::tensor_sum $x]\n"
        "torch::optimizer_zero_grad $optimizer 0\n"
        "puts [torch::tensor_to_list [torch::tensor_grad $x]]\n"
        "# Output: 0.0 0.0",
    ),
    Command(
        "optimizer_state_bytes",
        lambda session, optimizer: optimizer.state_bytes(),
        "How many bytes of state the optimizer holds on this rank: 0 before the first step; then, for each element "
        "it steps, one number with momentum and two with Adam. On n ranks a shard needs 1/n of the whole.",
        (_OPTIMIZER,),
        "an integer",
        "set x [torch::ones {10} float32 cpu 1]\n"
        "set optimizer [torch::optimizer_adam $x 0.1]\n"
        "torch::backward [torch::tensor_sum $x]\n"
        "torch::optimizer_step $optimizer\n"
        "puts [torch::optimizer_state_bytes $optimizer]\n"
        "# Output: 80",
    ),
)

TRAINING = (*_MODULES, *_GRADIENTS, *_OPTIMIZERS)
