"""The commands by topic, and which command an unknown name probably means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

TOPICS = {
    "ranks": (
        "start and end, ranks and groups of ranks",
        (
            "distributed_init",
            "distributed_finalize",
            "get_rank",
            "get_world_size",
            "is_distributed",
            "distributed_new_group",
        ),
    ),
    "collectives": (
        "operations that every rank of a group calls",
        (
            "distributed_barrier",
            "distributed_gather",
            "distributed_scatter",
            "distributed_reduce_scatter",
            "distributed_all_reduce",
            "distributed_reduce",
            "distributed_broadcast",
            "distributed_all_gather",
            "distributed_all_to_all",
        ),
    ),
    "messages": (
        "tensors sent from one rank to another",
        (
            "distributed_send",
            "distributed_isend",
            "distributed_recv",
            "distributed_irecv",
            "distributed_wait",
            "distributed_test",
        ),
    ),
    "tensors": (
        "create, show, reshape, save and load tensors",
        (
            "tensor_create",
            "zeros",
            "ones",
            "full",
            "empty",
            "arange",
            "rand",
            "randn",
            "tensor_shape",
            "tensor_dtype",
            "tensor_numel",
            "tensor_to_list",
            "tensor_item",
            "tensor_print",
            "tensor_reshape",
            "tensor_slice",
            "tensor_transpose",
            "tensor_save",
            "tensor_load",
            "tensor_delete",
        ),
    ),
    "arithmetic": (
        "compute with tensors",
        (
            "tensor_add",
            "tensor_sub",
            "tensor_mul",
            "tensor_div",
            "tensor_eq",
            "tensor_matmul",
            "tensor_exp",
            "tensor_log",
            "tensor_sum",
            "tensor_mean",
            "tensor_max",
            "tensor_argmax",
        ),
    ),
    "models": (
        "layers and models of them",
        (
            "linear",
            "relu",
            "sigmoid",
            "tanh",
            "dropout",
            "sequential",
            "layer_forward",
            "model_forward",
            "model_train",
            "model_eval",
            "model_parameters",
            "model_gradients",
            "model_save",
            "model_load",
        ),
    ),
    "training": (
        "losses, gradients and optimizers",
        (
            "mse_loss",
            "cross_entropy_loss",
            "loss_function",
            "backward",
            "tensor_backward",
            "tensor_grad",
            "manual_seed",
            "optimizer_sgd",
            "optimizer_adam",
            "optimizer_adamw",
            "optimizer_step",
            "optimizer_zero_grad",
            "optimizer_state_bytes",
        ),
    ),
    "help": (
        "these texts",
        ("help",),
    ),
}
"""Topic: what it is about, and its commands by snake_case name. Every command has one topic."""


def nearest(name: str, commands: Iterable[str]) -> str | None:
    """The command, by snake_case name, that this unknown name resembles; distributed_ may be missing from it."""
    known: dict[str, str] = {}
    for command in commands:
        bare = _plain(command)
        for key in (bare, bare.removeprefix("distributed")):
            known.setdefault(key, command)
    near = get_close_matches(_plain(name), known, n=1, cutoff=0.7)
    return known[near[0]] if near else None


def _plain(name: str) -> str:
    return name.rpartition("::")[2].lower().replace("_", "")
