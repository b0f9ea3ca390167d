"""The training commands in one process, against torch itself; their mistakes; models in files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.handles import to_numpy
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.training_commands import TRAINING
from tcl_calls import call, error

torch: Any = pytest.importorskip("torch")


def array(session: Session, handle: str) -> Any:
    return session.handles.tensor(handle)


def tensor(session: Session, values: Any) -> str:
    return session.handles.add(np.array(values))


# ---- one kind of handle ----


def test_tensors_of_torch_and_numpy_are_one_kind_of_handle(session: Session) -> None:
    x = call(session, "tensor_create", "-data", "{1 2} {3 4}", "-requiresGrad", "true")
    plain = call(session, "full", "2 2", "10")
    assert [x, plain] == ["tensor0", "tensor1"]
    for name in ("tensor_shape", "tensor_dtype", "tensor_numel", "tensor_print"):
        assert call(session, name, x).splitlines()[-1] == call(session, name, plain).splitlines()[-1]
    for collective in ("all_reduce", "scatter", "reduce_scatter", "broadcast"):
        assert call(session, "tensor_to_list", call(session, f"distributed_{collective}", x)) == "1.0 2.0 3.0 4.0"
    assert call(session, "tensor_shape", call(session, "distributed_gather", x)) == "1 2 2"
    assert call(session, "tensor_to_list", call(session, "tensor_argmax", x, "1")) == "1 1"
    assert call(session, "tensor_to_list", call(session, "tensor_eq", x, plain)) == "0 0 0 0"
    call(session, "tensor_delete", x)
    assert x not in session.handles.tensors


@pytest.mark.parametrize(
    ("words", "function"),
    [
        ("tensor_add {x} {y}", lambda x, y: x + y),
        ("tensor_sub {y} {x}", lambda x, y: y - x),
        ("tensor_mul {x} 2.5", lambda x, y: x * 2.5),
        ("tensor_div {y} {x}", lambda x, y: y / x),
        ("tensor_matmul {x} {y}", lambda x, y: x @ y),
        ("tensor_exp {x}", lambda x, y: x.exp()),
        ("tensor_log {x}", lambda x, y: x.log()),
        ("tensor_reshape {x} 4", lambda x, y: x.reshape(4)),
        ("tensor_slice {x} 0 1", lambda x, y: x[1:]),
        ("tensor_transpose {x}", lambda x, y: x.T * torch.ones(2, 2)),
        ("tensor_sum {x} 0", lambda x, y: x.sum(0)),
        ("tensor_mean {x}", lambda x, y: x.mean()),
        ("tensor_max {x} 1 1", lambda x, y: x.amax(1, True)),
        ("tensor_max {x}", lambda x, y: x.amax()),
        ("relu {x}", lambda x, y: x.relu()),
        ("sigmoid {x}", lambda x, y: x.sigmoid()),
        ("tanh {x}", lambda x, y: x.tanh()),
    ],
)
def test_gradients_pass_through_the_tensor_commands(session: Session, words: str, function: Any) -> None:
    values = [[1.0, 2.0], [3.0, 0.5]]
    x = call(session, "tensor_create", "-data", "{1 2} {3 0.5}", "-dtype", "float64", "-requiresGrad", "1")
    y = call(session, "tensor_create", "{5 6} {7 8}", "float64")
    name, *rest = words.format(x=x, y=y).split()
    result = call(session, name, *rest)
    expected = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    computed = function(expected, torch.tensor([[5.0, 6.0], [7.0, 8.0]], dtype=torch.float64))
    np.testing.assert_allclose(array(session, result), computed.detach())
    assert call(session, "tensor_backward", call(session, "tensor_sum", result)) == "OK"
    computed.sum().backward()
    np.testing.assert_allclose(array(session, call(session, "tensor_grad", x)), expected.grad)


# ---- modules, losses, optimizers against torch ----


def small_model(session: Session, seed: int = 3) -> tuple[str, Any]:
    """A model, and torch's own with the same parameters."""
    assert call(session, "manual_seed", seed) == "ok"
    layers = [call(session, "linear", "3", "5"), call(session, "tanh"), call(session, "linear", "5", "2")]
    model = call(session, "sequential", " ".join(layers))
    own = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    own.load_state_dict(session.handles.module(model).state_dict())
    return model, own


def flat(parameters: Any) -> Any:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy()


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("optimizer_sgd {} 0.1", lambda p: torch.optim.SGD(p, 0.1)),
        (
            "optimizer_sgd {} 0.1 0.9 0 0.01 1",
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        ),
        ("optimizer_adam {} 0.01 0.8 0.99 0.1", lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.99), weight_decay=0.1)),
        ("optimizer_adamw {} 0.01", lambda p: torch.optim.AdamW(p, 0.01)),
    ],
)
@pytest.mark.parametrize("given", ["own", "flat", "reduced"])
@pytest.mark.parametrize("targets", ["classes", "values"])
def test_steps_are_those_of_torch(session: Session, words: str, make: Any, given: str, targets: str) -> None:
    model, own = small_model(session)
    name, *rest = words.split()
    parameters = call(session, "model_parameters", model)
    assert call(session, "model_parameters", model) == parameters  # the same handles
    optimizer = call(session, name, *(parameters if word == "{}" else word for word in rest))
    reference = make(own.parameters())
    inputs = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    wanted = np.array([0, 1, 1, 0, 1, 0]) if targets == "classes" else inputs[:, :2]
    loss_of = torch.nn.functional.cross_entropy if targets == "classes" else torch.nn.functional.mse_loss
    for _ in range(4):
        outputs = call(session, "model_forward", model, tensor(session, inputs))
        loss = call(session, "loss_function", outputs, tensor(session, wanted))
        expected = loss_of(own(torch.from_numpy(inputs)), torch.from_numpy(wanted))
        assert float(call(session, "tensor_item", loss)) == pytest.approx(expected.item(), rel=1e-6)
        assert call(session, "optimizer_zero_grad", optimizer) == "OK"
        assert call(session, "backward", loss) == "OK"
        reference.zero_grad()
        expected.backward()
        reference.step()
        gradients = [call(session, "model_gradients", model)] if given != "own" else []
        if given == "reduced":
            gradients = [call(session, "distributed_reduce_scatter", *gradients, "sum")]
        assert call(session, "optimizer_step", optimizer, *gradients) == "OK"
        np.testing.assert_allclose(flat(session.handles.module(model).parameters()), flat(own.parameters()), rtol=1e-5)
    numbers = {"optimizer_sgd": 1 if "0.9" in words else 0}.get(name, 2)
    assert call(session, "optimizer_state_bytes", optimizer) == str(4 * numbers * flat(own.parameters()).size)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1" + "0" * 400])
def test_an_optimizers_numbers_are_finite(session: Session, number: str) -> None:
    parameters = call(session, "model_parameters", call(session, "linear", "3", "2"))
    for words, option in (
        (("optimizer_sgd", parameters, number), "lr"),
        (("optimizer_sgd", parameters, "0.1", number), "momentum"),
        (("optimizer_adam", "-parameters", parameters, "-lr", "0.1", "-beta1", number), "beta1"),
    ):
        text = error(session, *words)
        assert text.startswith(f'Invalid -{option} parameter: "{number[:9]}')
        assert text.endswith(". Must be a finite number.")


def test_both_syntaxes_and_aliases(session: Session) -> None:
    model = call(session, "linear", "-outFeatures", "2", "-inFeatures", "3", "-bias", "0", "-dtype", "float64")
    parameters = call(session, "model_parameters", "-model", model).split()
    assert [call(session, "tensor_shape", handle) for handle in parameters] == ["2 3"]
    rows = call(session, "ones", "4 3", "float64")
    for name, option in (("layer_forward", "-layer"), ("model_forward", "-model")):
        assert call(session, "tensor_shape", call(session, name, "-input", rows, option, model)) == "4 2"
    optimizer = call(
        session, "optimizer_sgd", "-parameters", *parameters, "-lr", "0.1", "-weightDecay", "0", "-nesterov", "0"
    )
    call(session, "optimizer_adamw", "-lr", "0.1", "-beta1", "0.9", "-beta2", "0.9", "-parameters", *parameters)
    outputs = call(session, "model_forward", model, rows)
    loss = call(session, "mse_loss", "-target", call(session, "zeros", "4 2", "float64"), "-input", outputs)
    call(session, "backward", "-input", loss)
    call(
        session,
        "optimizer_step",
        "-gradients",
        call(session, "model_gradients", "-model", model),
        "-optimizer",
        optimizer,
    )
    call(session, "optimizer_zero_grad", "-optimizer", optimizer, "-setToNone", "0")
    assert set(call(session, "tensor_to_list", call(session, "tensor_grad", "-input", parameters[0])).split()) == {
        "0.0"
    }
    assert {"optimizerZeroGrad", "modelForward", "crossEntropyLoss"} <= {command.alias for command in TRAINING}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(session: Session, reduction: str) -> None:
    scores = np.random.default_rng(2).normal(size=(4, 3))
    classes, weight = np.array([2, 0, 1, 1], np.int32), np.array([1.0, 2.0, 0.5])
    given = torch.from_numpy(scores)
    for words in ((), (tensor(session, weight),), ("",)):
        options = ["-reduction", reduction, *(("-weight", *words) if words else ())]
        handles = ["-input", tensor(session, scores), "-target", tensor(session, classes)]
        expected = torch.nn.functional.cross_entropy(
            given,
            torch.from_numpy(classes).long(),
            torch.from_numpy(weight) if words and words[0] else None,
            reduction=reduction,
        )
        np.testing.assert_allclose(array(session, call(session, "cross_entropy_loss", *handles, *options)), expected)
    found = call(session, "mse_loss", tensor(session, scores), tensor(session, scores * 2), reduction)
    expected = torch.nn.functional.mse_loss(given, given * 2, reduction=reduction)
    np.testing.assert_allclose(array(session, found), expected)


def test_gradients_add_up_and_are_padded_to_the_world_size(session: Session) -> None:
    call(session, "distributed_init", "0", "4", "nccl")
    model, _ = small_model(session)  # 32 parameters
    odd = call(session, "linear", "3", "1")
    for handle, size in ((model, "32"), (odd, "4")):
        for _ in range(2):
            call(
                session,
                "backward",
                call(session, "tensor_sum", call(session, "model_forward", handle, call(session, "ones", "1 3"))),
            )
        assert call(session, "tensor_shape", call(session, "model_gradients", handle)) == size
    assert call(session, "tensor_to_list", call(session, "model_gradients", odd)) == "2.0 2.0 2.0 2.0"
    call(session, "distributed_init", "0", "3", "nccl")
    gradients = call(session, "model_gradients", odd)
    assert call(session, "tensor_to_list", gradients) == "2.0 2.0 2.0 2.0 0.0 0.0"
    optimizer = call(session, "optimizer_sgd", call(session, "model_parameters", odd), "0.1")
    assert call(session, "optimizer_step", optimizer, call(session, "distributed_reduce_scatter", gradients)) == "OK"
    assert "have 4 elements" in error(session, "optimizer_step", optimizer, call(session, "ones", "2"))


def test_dropout_follows_the_mode_of_the_model(session: Session) -> None:
    ones = call(session, "ones", "1000")
    model = call(session, "sequential", call(session, "dropout", "0.5"))
    assert set(array(session, call(session, "model_forward", model, ones)).tolist()) == {0.0, 2.0}
    assert call(session, "model_eval", model) == "OK"
    assert set(array(session, call(session, "model_forward", model, ones)).tolist()) == {1.0}
    assert call(session, "model_train", model) == "OK"
    assert set(array(session, call(session, "model_forward", model, ones)).tolist()) == {0.0, 2.0}
    assert set(array(session, call(session, "dropout", ones, "0.25")).tolist()) == {0.0, float(np.float32(4 / 3))}
    assert set(array(session, call(session, "dropout", "-input", ones, "-training", "0")).tolist()) == {1.0}


def test_a_seed_repeats_all_random_numbers(session: Session) -> None:
    def numbers() -> list[Any]:
        call(session, "manual_seed", "5")
        layer = call(session, "linear", "2", "2")
        drawn = [
            call(session, "rand", "3"),
            call(session, "randn", "3"),
            call(session, "model_parameters", layer).split()[0],
        ]
        return [array(session, handle).tolist() for handle in drawn]

    assert numbers() == numbers()


# ---- mistakes ----


def test_mistakes_name_what_was_given(session: Session) -> None:
    model = call(session, "linear", "3", "2")
    x = call(session, "ones", "-shape", "2", "-requiresGrad", "1")
    plain, row = call(session, "ones", "4 2"), call(session, "ones", "1 3")
    loss = call(session, "tensor_sum", call(session, "model_forward", model, row))
    parameters = call(session, "model_parameters", model)
    optimizer = call(session, "optimizer_sgd", parameters, "0.1")
    for words, message in (
        (("linear", "0", "2"), 'Invalid -inFeatures parameter: "0". Must be an integer from 1'),
        (("linear", "3", "2", "1", "int8"), 'Invalid -dtype parameter: "int8". Must be a floating-point type.'),
        (("sequential", f"{model} module99"), f'Invalid -modules parameter: "{model} module99". Must be a list of mod'),
        (("model_forward", plain, row), f'Invalid -model parameter: "{plain}". Must be a module handle.'),
        (
            ("model_forward", model, plain),
            "Invalid -input parameter. The module cannot take a tensor of float32 {4 2}: ",
        ),
        (("dropout", plain, "1.5"), 'Invalid -p parameter: "1.5". Must be a probability'),
        (("mse_loss", plain, row), "Invalid -target parameter. Its shape is {1 3}, and the input's is {4 2}."),
        (
            ("mse_loss", plain, plain, "median"),
            'Invalid -reduction parameter: "median". Must be one of mean, sum, none.',
        ),
        (
            ("cross_entropy_loss", plain, plain),
            "Invalid -target parameter. Must be class indices of an integer type, not float32.",
        ),
        (
            ("cross_entropy_loss", plain, tensor(session, [1, 0])),
            "Invalid -target parameter. Must be one class for each",
        ),
        (
            ("cross_entropy_loss", plain, tensor(session, [0, 1, 2, 0])),
            'Invalid -target parameter: "2". Must be classes from 0 to 1.',
        ),
        (
            ("cross_entropy_loss", plain, tensor(session, [0, 1, 1, 0]), plain),
            "Invalid -weight parameter. Must be 2 numbers, one for each class, not {4 2}.",
        ),
        (
            ("backward", plain),
            "Invalid -input parameter. The tensor was not computed from one that requires gradients.",
        ),
        (("backward", x), "Invalid -input parameter. Must have one element, not shape {2}."),
        (("tensor_grad", plain), "Invalid -input parameter. The tensor was not made to require gradients."),
        (("tensor_grad", x), "Invalid -input parameter. There is no gradient yet; torch::backward computes it."),
        (
            ("model_gradients", model),
            "Invalid -model parameter. Its parameters have no gradients; torch::backward of a",
        ),
        (
            ("optimizer_step", optimizer),
            "Invalid -optimizer parameter. Its parameters have no gradients; torch::backward",
        ),
        (("optimizer_step", "sgd"), 'Invalid -optimizer parameter: "sgd". Must be an optimizer handle.'),
        (("optimizer_step", optimizer, row), "Invalid -gradients parameter. The parameters have 8 elements. The gra"),
        (
            ("optimizer_step", optimizer, call(session, "ones", "8", "float64")),
            "Invalid -gradients parameter. The tensor is of float64, the parameters float32.",
        ),
        (
            ("optimizer_sgd", f"{x} {plain}", "0.1"),
            "Invalid -parameters parameter. Must be tensors that require gradients, and num",
        ),
        (
            ("optimizer_sgd", "", "0.1"),
            "Invalid -parameters parameter. Must be tensors that require gradients, and the list is",
        ),
        (
            ("optimizer_sgd", f"{x} {x}", "0.1"),
            "Invalid -parameters parameter. Must be tensors that require gradients, each once.",
        ),
        (
            ("optimizer_sgd", loss, "0.1"),
            "Invalid -parameters parameter. Must be tensors that require gradients, and number 0",
        ),
        (("optimizer_sgd", x, "-1"), "Invalid learning rate: -1"),
        (("optimizer_adam", x, "0.1", "2"), "Invalid beta parameter at index 0: 2"),
        (("manual_seed", "-1"), 'Invalid -seed parameter: "-1". Must be an integer from 0'),
    ):
        assert error(session, *words).startswith(message), words
    call(session, "backward", loss)
    assert error(session, "backward", loss).startswith(
        "Invalid -input parameter. Trying to backward through the graph a"
    )


def test_without_torch_the_error_names_the_pip_command(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name, *words in (
        ("linear", "3", "2"),
        ("relu",),
        ("ones", "2", "float32", "cpu", "1"),
        ("mse_loss", call(session, "ones", "2"), call(session, "ones", "2")),
        ("model_load", str(Path(__file__))),
    ):
        code, text, why = session.answer(name, words)
        assert (code, why) == ("error", "RANKWISE ModuleNotFoundError")
        assert text == f"torch::{name} needs torch: pip install 'rankwise[tcl]'"


# ---- files ----


def test_a_model_is_saved_and_loaded(session: Session, tmp_path: Path) -> None:
    model, own = small_model(session)
    file = tmp_path / "model.pt"
    assert call(session, "model_save", model, file) == "OK"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    other = Session(COMMANDS)
    loaded = call(other, "model_load", file)
    np.testing.assert_array_equal(flat(other.handles.module(loaded).parameters()), flat(own.parameters()))
    changed, _ = small_model(other, seed=4)
    before = call(other, "model_parameters", changed)
    assert call(other, "model_load", "-model", changed, "-file", file) == changed
    assert call(other, "model_parameters", changed) == before
    np.testing.assert_array_equal(flat(other.handles.module(changed).parameters()), flat(own.parameters()))
    torch.nn.Sequential(*own).load_state_dict(torch.load(file, weights_only=True)["state"])  # Python reads it too


def test_a_model_is_saved_through_a_link_and_only_in_a_regular_file(session: Session, tmp_path: Path) -> None:
    model, _ = small_model(session)
    (tmp_path / "link").symlink_to("model.pt")
    call(session, "model_save", model, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    call(session, "model_load", tmp_path / "model.pt")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        assert error(session, "model_save", model, tmp_path / name).endswith("Must be a regular file.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model.pt", "pipe"]


def test_a_result_never_shares_its_elements_with_the_input(session: Session) -> None:
    plain, tracked = tensor(session, [1.0, 2.0]), call(session, "tensor_create", "-data", "1 2", "-requiresGrad", "1")
    module = call(session, "dropout", "0.5")
    call(session, "model_eval", module)
    for given in (plain, tracked):
        for result in (call(session, "dropout", given, "0"), call(session, "model_forward", module, given)):
            assert not np.shares_memory(to_numpy(array(session, result)), to_numpy(array(session, given)))


def test_losses_and_dropout_take_floating_point_tensors(session: Session) -> None:
    whole = tensor(session, [1, 2])
    wanted = "Invalid -input parameter. Must be a tensor of a floating-point type, not int64."
    assert error(session, "mse_loss", whole, whole) == wanted
    assert error(session, "cross_entropy_loss", whole, tensor(session, 1)) == wanted
    assert error(session, "dropout", whole, "0.5") == wanted


def test_every_kind_of_module_is_loaded_as_it_was_saved(session: Session, tmp_path: Path) -> None:
    inner = call(session, "sequential", f"{call(session, 'linear', '2', '2', '0', 'bfloat16')} {call(session, 'relu')}")
    parts = [inner, *(call(session, name) for name in ("sigmoid", "tanh")), call(session, "dropout", "0.25")]
    model = call(session, "sequential", " ".join(parts))
    call(session, "model_save", model, tmp_path / "m")
    loaded = session.handles.module(call(session, "model_load", tmp_path / "m"))
    assert str(loaded) == str(session.handles.module(model))
    assert loaded[0][0].weight.dtype is torch.bfloat16


def test_files_that_do_not_fit(session: Session, tmp_path: Path) -> None:
    model, _ = small_model(session)
    before = flat(session.handles.module(model).parameters())
    call(session, "model_save", call(session, "linear", "3", "5"), tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"module": ["fly"], "state": {}}, tmp_path / "fly.pt")
    (tmp_path / "text.pt").write_text("no model")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("list.pt", "fly.pt", "text.pt", "empty.pt"):
        assert error(session, "model_load", tmp_path / name).endswith("Must be a file that model_save wrote.")
    assert "No such file" in error(session, "model_load", tmp_path / "none.pt")
    assert "No such file" in error(session, "model_save", model, tmp_path / "nowhere" / "x.pt")
    assert error(session, "model_load", model, tmp_path / "other.pt").endswith(
        "The file has linear(3, 5, True, float32), the model is sequential("
        "linear(3, 5, True, float32), tanh(), linear(5, 2, True, float32))."
    )
    np.testing.assert_array_equal(flat(session.handles.module(model).parameters()), before)
