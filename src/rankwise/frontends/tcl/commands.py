"""The table of all commands: names, parameters, functions and help. Help, completion and docs are made from it."""

from __future__ import annotations

from rankwise.frontends.tcl import helptext, value_types
from rankwise.frontends.tcl.distributed_commands import DISTRIBUTED
from rankwise.frontends.tcl.parameters import Command, Parameter
from rankwise.frontends.tcl.tensor_commands import TENSORS
from rankwise.frontends.tcl.training_commands import TRAINING

HELP = Command(
    "help",
    helptext.command_help,
    "Print the topics, the commands of one topic, or the usage of one command and an example.",
    (Parameter("command", value_types.STRING, "a topic, or a command, with or without torch::", ""),),
    "the empty string; the text goes to standard output",
    "torch::help distributed_gather",
    prints=True,
)

COMMANDS = {command.name: command for command in (*DISTRIBUTED, *TENSORS, *TRAINING, HELP)}
"""Every command by its snake_case name."""
