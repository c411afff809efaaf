"""Files that are trained: losses and weights after a step, against PyTorch in float64."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the float64 reference is PyTorch: make test-torch installs it")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import plain_steps  # noqa: E402
import small_step  # noqa: E402
from torch import nn  # noqa: E402
from torch_modules import images  # noqa: E402

import autotm  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.zoo import with_values_stored  # noqa: E402

ALLOWED, RATE = 3.0, 0.1
FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(torch.zeros(1, 12, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(32, 50)

    def forward(self, ids: Any) -> Any:
        return self.head(self.layer(self.words(ids) + self.places))


class WithLoss(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(self.module(x), labels)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 10),
    )  # fmt: skip


def started(module: nn.Module) -> nn.Module:
    """Ready for export: no two tensors equal, which would become one."""
    torch.manual_seed(5)
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            if value.is_floating_point():
                value.add_(0.1 * torch.rand_like(value))
    return module.eval()


def export(module: nn.Module, values: tuple[Any, ...], path: Path, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Weights as they are: optimizing folds batch norm into convolutions.
        kept = {"optimize": False, "external_data": False, "verbose": False}
        torch.onnx.export(module, values, str(path), dynamo=True, **kept, **options)


def stepped(module: nn.Module, x: Any, labels: Any, dtype: torch.dtype) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the weights after a step of SGD, batch norm by its running averages."""
    module = copy.deepcopy(module).to(dtype)
    scores = module(x.to(dtype) if x.is_floating_point() else x)
    loss = nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=RATE).step()
    return loss.item(), {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def distance(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum((found[name] - value) ** 2) for name, value in exact.items())))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["convolutional", "attends"])
def test_a_step_is_as_close_to_float64_as_pytorchs(kind: str, tmp_path: Path) -> None:
    module = started(convolutional() if kind == "convolutional" else Attends())
    x = images(4, 3, 16, 16)[0] if kind == "convolutional" else torch.randint(0, 50, (3, 12))
    classes, shape = (10, (4,)) if kind == "convolutional" else (50, (3, 12))
    labels = torch.randint(0, classes, shape)
    export(module, (x,), tmp_path / "model.onnx")
    rule = autotm.Sgd(RATE)
    network = autotm.from_onnx(tmp_path / "model.onnx", inputs=(x.numpy(),), loss="cross_entropy", training=rule)
    step = plain_steps.compiled(with_values_stored(network, tmp_path), tmp_path)
    one_hot = nn.functional.one_hot(labels, classes).numpy()
    after = step.run(1, change=lambda arrays: np.copyto(arrays["labels"], one_hot)).after[0]
    assert network.origin is not None
    state = network.origin.state({name: after[name] for name in network.parameters}, 1)
    exact_loss, exact = stepped(module, x, labels, torch.float64)
    rounded_loss, rounded = stepped(module, x, labels, torch.float32)
    exact = {name: value for name, value in exact.items() if name in network.parameters}
    assert set(exact) == {name for name, _ in module.named_parameters()}
    assert distance(state, exact) <= ALLOWED * distance(rounded, exact)
    spacing = np.spacing(np.float32(exact_loss))
    assert abs(after["loss"] - exact_loss) <= ALLOWED * max(abs(rounded_loss - exact_loss), spacing)


@pytest.mark.timeout(600)
def test_a_planned_step_takes_the_files_inputs_and_gives_its_weights(tmp_path: Path, results: Path) -> None:
    module = started(convolutional())
    x, labels = images(4, 3, 16, 16)[0], torch.randint(0, 10, (4,))
    export(WithLoss(module).eval(), (x, labels), tmp_path / "with_loss.onnx")
    placed = autotm.plan(
        str(tmp_path / "with_loss.onnx"), limit="1:1", mode="train", training=autotm.Sgd(RATE), results=results,
        machine=small_step.machine(), profile=FAST,
    )  # fmt: skip
    exact_loss, exact = stepped(module, x, labels, torch.float64)
    assert placed.step(x.numpy(), labels.numpy()) == pytest.approx(exact_loss, rel=1e-5)
    state = placed.state_dict()
    for name, value in exact.items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(state[f"module.{name}"], value, rtol=1e-4, atol=1e-5)
    assert placed.step(x.numpy(), labels.numpy()) < exact_loss
    with pytest.raises(BadInputError, match="the step was compiled for"):
        placed.step(x.numpy()[:2])
    placed.close()


def test_fixed_weights_and_statistics_are_not_trained(tmp_path: Path) -> None:
    export(started(convolutional()), (torch.randn(4, 3, 16, 16),), tmp_path / "model.onnx")
    network = autotm.from_onnx(tmp_path / "model.onnx", loss="cross_entropy", fixed=("0.*", "9.bias"))
    assert set(network.parameters) == {"1.weight", "1.bias", "4.weight", "4.bias", "8.weight", "8.bias", "9.weight"}
    assert network.origin is not None
    assert {"0.weight", "9.bias", "1.running_mean", "1.running_var"} <= set(network.origin.kept)
