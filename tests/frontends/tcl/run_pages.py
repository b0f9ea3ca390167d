"""Runs every Tcl block of the pages in docs/spec and writes what came of each, a line of JSON per block.

A program: test_pages.py runs it alone and on ranks. Each block has an interpreter of its own. Its
commands run one after the other; after each, what the page says about it is checked: the comments
`# Output:`, `# Error:` and `# result shape:`, and for collectives the shape and the values of the
result, which before distributed_init is the tensor itself (gather: with a dimension of 1 in front).
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from rankwise.frontends.tcl.interpreter import Interpreter, TclError

PAGES = Path(__file__).resolve().parents[3] / "docs" / "spec"
RANKS = int(os.environ.get("RANKWISE_WORLD_SIZE", 1))

# Syntax, not programs: arguments in angle brackets or question marks, or without a value. By page and line.
NOTATION = {("gather", 15), ("gather", 22)}
NOTATION |= {(page, line) for page in ("scatter", "reduce_scatter") for line in (8, 13, 18)}

# Comments behind commands without a semicolon, which no Tcl accepts; they are cut.
CUT = {("gather", 164)}

# With the argument --no-training these are left out: importing torch takes a second of each rank.
TRAINS = {("reduce_scatter", 187), ("scatter", 192)}

# What the pages leave to the reader.
PRELUDE = """
set tensor [torch::tensor_create -data {1.0 2.0 3.0 4.0} -shape {2 2} -dtype float32]
set input $tensor
set large_data {1 2 3 4 5 6 7 8}; set data_shape {4 2}
set param_data {1 2 3 4}; set param_shape {2 2}
set task_data {1 2 3}; set task_shape {3}
set data_3d [lrepeat 24 0.5]
set input_data {1 2 3 4}; set shape {2 2}
set data $tensor; set size 8; set world_size 4; set local_leader 0
foreach name {train_one_epoch validate_model save_model train_step} {
    proc $name args {lappend ::called [lindex [info level 0] 0]}
}
foreach name {
    create_large_batch get_large_batch create_large_tensor get_layer_parameters get_local_gradients
    process_batch local_processing compute_gradients
} {
    proc $name args {return [torch::full {4 2} 1.5 float32]}
}
foreach name {get_data_source_rank get_optimal_source_rank} {
    proc $name args {return 0}
}
"""

# Three procedures of the pages train. Two of them read a variable that is not their own: `link` runs before each of
# their commands and makes it the global one.
TRAINING = """
torch::manual_seed 1
set model [torch::linear 2 2]
set targets $tensor
set optimizer [torch::optimizer_sgd [torch::model_parameters $model] 0.1]
proc link {name args} {uplevel 1 [list global $name]}
proc loss {} {torch::tensor_item [torch::loss_function [torch::model_forward $::model $::tensor] $::tensor]}
"""
STEP = (
    TRAINING
    + """
trace add execution distributed_training_step enterstep {link optimizer}
set first [loss]
set result [distributed_training_step $model $tensor $tensor]
"""
)
LOADING = (
    TRAINING
    + """
trace add execution training_step enterstep {link targets}
set got [torch::tensor_to_list [distributed_data_loading $tensor]]
set local [training_step $model [distributed_data_loading $tensor]]
"""
)

# Blocks that only define procedures: calls of these. And what must be true after a block.
AFTER = {
    ("barrier", 77): ("load_distributed_data 0 4", "{$printed eq {{All processes have finished loading data}}}"),
    ("barrier", 139): (
        "distributed_training 2",
        "{$called eq {train_one_epoch validate_model train_one_epoch validate_model}}",
    ),
    ("barrier", 160): (
        "save_checkpoint model.pt 0; save_checkpoint model.pt 1",
        "{$called eq {save_model} && [llength $printed] == 2}",
    ),
    ("barrier", 174): ("profile_training_step", "{[regexp {^{Compute: \\d+ms, Barrier: \\d+ms}$} $printed]}"),
    ("reduce_scatter", 187): (
        STEP,
        "{$result eq {OK} && [loss] < $first}",
    ),
    ("reduce_scatter", 151): (
        "",
        "{$printed eq {{Error: Required parameter missing: -tensor, or invalid operation. "
        "Valid operations: sum, mean, max, min, product} {Error: Invalid tensor handle}}}",
    ),
    ("scatter", 156): (
        "",
        "{$printed eq {{Error: Required parameter missing: -tensor, or invalid src parameter} "
        "{Error: Invalid tensor handle}}}",
    ),
    ("scatter", 192): (
        LOADING,
        "{$got eq {1.0 2.0 3.0 4.0} && [torch::tensor_item $local] == [loss] && "
        "[torch::tensor_shape [torch::model_gradients $model]] >= 6}",  # padded to the launcher's world size
    ),
    ("scatter", 212): (
        "set got [torch::tensor_to_list [distribute_model_layers $tensor]]",
        "{$got eq {1.0 2.0 3.0 4.0}}",
    ),
}

SETS = re.compile(r"set (\w+) \[torch::distributed_?(\w+?) (?:-tensor )?\$(\w+)")
INCOMPLETE = "can't read|invalid command name"  # the errors of a block that is not complete in itself


class Wrong(AssertionError):
    """A block does not do what its page says."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    text: str

    @property
    def place(self) -> tuple[str, int]:
        return self.page, self.line


def blocks() -> list[Block]:
    """The Tcl blocks of the pages, in order."""
    found = []
    for path in sorted(PAGES.glob("distributed_*.md")):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```tcl\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(path.stem.removeprefix("distributed_"), line, match[1]))
    return found


def commands(interpreter: Interpreter, text: str) -> list[str]:
    """The commands and comments of a script, one by one."""
    found, command = [], ""
    for line in text.splitlines():
        command += line + "\n"
        if command.strip() and interpreter.is_complete(command):
            found.append(command.strip())
            command = ""
    if command.strip():
        raise Wrong(f"not complete: {command}")
    return found


class Run:
    """One block in an interpreter of its own."""

    def __init__(self, block: Block, prelude: str) -> None:
        self.block = block
        self.error: TclError | None = None
        self.tcl = Interpreter()
        self.tcl.eval("rename puts ::torch::Puts; proc puts {text} {lappend ::printed $text}")
        self.tcl.eval("set printed {}; set called {}")
        self.tcl.eval(prelude)

    def __call__(self) -> None:
        text = self.block.text
        if self.block.place in CUT:
            text = re.sub(r"\]\s+# \w.*$", "]", text, flags=re.MULTILINE)
        for command in commands(self.tcl, text):
            if command.startswith("#"):
                self.check(command)
                continue
            self.raise_error()
            try:
                self.tcl.eval(command)
            except TclError as error:
                self.error = error  # allowed where the page says so next
            else:
                self.check_result(command)
        self.raise_error()
        if self.block.place in AFTER:
            call, true = AFTER[self.block.place]
            self.tcl.eval(call)
            if self.tcl.eval(f"expr {true}") != "1":
                raise Wrong(f"{call} printed {self.tcl.eval('set printed')}, called {self.tcl.eval('set called')}")

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def check(self, comment: str) -> None:
        found = re.fullmatch(r'# (Output|Error|result shape): "?(.*?)"?', comment)
        if found is None:
            return
        what, expected = found.groups()
        if what == "Error":
            if self.error is not None and re.match(INCOMPLETE, str(self.error)):
                raise self.error
            got, self.error = str(self.error), None
        elif what == "Output":
            self.raise_error()
            got = self.tcl.eval("lindex $printed end")
            if RANKS > 1:  # real there
                expected = expected.replace("(simulated multi-GPU)", f"({RANKS} processes)")
        else:
            got, expected = self.tcl.eval("torch::tensor_shape $result"), expected.strip("{}")
        if got != expected:
            raise Wrong(f"{comment!r}, but it is {got!r}")

    def check_result(self, command: str) -> None:
        found = SETS.match(command)
        if found is None:
            return
        result, operation, given = found.groups()
        result, given = (self.tcl.session.handles.tensors[self.tcl.eval(f"set {name}")] for name in (result, given))
        expected = (1, *given.shape) if operation.lower() == "gather" else given.shape
        if result.shape != expected or (result != given).any() or result.dtype != given.dtype:
            raise Wrong(f"{command}: {result!r} of {given!r}")


def outcome(block: Block) -> str:
    """What the block is, or why it is wrong, which begins with 'WRONG'."""
    if block.place in NOTATION:
        return "notation, not a program"
    ran = "ran, comments cut" if block.place in CUT else "ran"
    try:
        if block.place in AFTER:
            run(block, PRELUDE)
            return "ran, and its procedures" if AFTER[block.place][0] else "ran after the prelude"
        try:
            run(block, "")
        except TclError as error:
            if not re.match(INCOMPLETE, str(error)):
                raise
            run(block, PRELUDE)
            return "ran after the prelude"
    except (Wrong, TclError) as error:
        return f"WRONG: {error}"
    return ran


def run(block: Block, prelude: str) -> None:
    this = Run(block, prelude)
    try:
        this()
    finally:
        this.tcl.close()


if __name__ == "__main__":
    for block in blocks():
        if "--no-training" in sys.argv and block.place in TRAINS:
            continue
        lines = len(block.text.splitlines())
        print(json.dumps([block.page, block.line, lines, outcome(block)]), flush=True)
    sys.exit(0)
