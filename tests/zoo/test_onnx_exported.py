"""What PyTorch exports to ONNX computes what it computes in PyTorch: operators, networks, trained steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the reference is PyTorch: make test-torch installs it")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import plain_steps  # noqa: E402
import small_step  # noqa: E402
from plain_steps import distance  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch_cases import Made, images  # noqa: E402

import autotm  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from imported_models import torchvision_models  # noqa: E402

NEW, OLD = {"dynamo": True, "external_data": False}, {"dynamo": False}
"""Options of PyTorch's exporters."""
ALLOWED, RATE = 3.0, 0.1


def export(module: nn.Module, values: tuple[Any, ...], path: Path, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, values, str(path), verbose=False, **options)


# Operators as exporters write them, older ones and newer ones, compute what they compute in PyTorch.


def attention() -> nn.Module:
    def forward(self: Made, x: Any) -> Any:
        parts = self.all(x).reshape(x.shape[0], -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts, is_causal=True)

    return Made(forward, all=nn.Linear(32, 96))


def lines() -> nn.Module:
    """Convolutions along one axis, a slice of a parameter, bounds."""

    def forward(self: Made, x: Any) -> Any:
        y = self.conv(x)
        return torch.softmax(y + self.places[:, :, : y.shape[2]], 1).clamp(0.05, 0.3)

    return Made(forward, conv=nn.Conv1d(8, 6, 3, stride=2, padding=1), places=nn.Parameter(*images(1, 6, 7)))


def pixels() -> nn.Module:
    """What moves pixels: transposed convolution, resizing, padding, flips, running sums, products, tiles, best ones."""

    def forward(self: Made, x: Any) -> Any:
        x = self.slope(self.norm(self.conv(x)))
        x = F.pad(F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 0, 1), mode="reflect")
        x = x.flip(2).cumsum(1)
        x = F.hardswish(torch.einsum("bchw,bcwk->bchk", x[:, :, :6, :6], x[:, :, :6, :7]))
        deviation = x.std(dim=(2, 3))
        return torch.where(deviation > 0.5, deviation, -deviation).tile(1, 2), F.silu(x).amax(-1), x.topk(2, -1)[0]

    return Made(forward, conv=nn.ConvTranspose2d(3, 4, 3, stride=2), norm=nn.GroupNorm(2, 4), slope=nn.PReLU(4))


LINES, IMAGES, WORDS = (2, 8, 9), (2, 3, 5, 5), (2, 6, 32)
ANY = {"batch": torch.export.Dim("batch"), "words": torch.export.Dim("words")}
CASES: list[tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = [
    (lines, LINES, NEW),
    (lines, LINES, {**OLD, "opset_version": 11}),
    (pixels, IMAGES, NEW),
    (pixels, IMAGES, {**OLD, "opset_version": 16}),
    (attention, WORDS, {**NEW, "opset_version": 23}),
    (attention, WORDS, {**NEW, "dynamic_shapes": (({0: ANY["batch"], 1: ANY["words"]},),)}),
    (attention, WORDS, {**OLD, "opset_version": 14, "input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("build", "shape", "options"), CASES)
def test_outputs_are_pytorchs(
    build: Callable[[], nn.Module], shape: tuple[int, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(2)
    module, (x,) = build().eval(), images(*shape)
    export(module, (x,), tmp_path / "model.onnx", **options)
    network = autotm.from_onnx(tmp_path / "model.onnx", inputs=x.numpy())
    after = plain_steps.compiled(network, tmp_path).run(1).after[0]
    with torch.no_grad():
        wanted = module(x)
    for name, value in zip(network.results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_allclose(after[name], value.numpy(), rtol=2e-5, atol=2e-5)


# Networks that PyTorch exported to ONNX compute what they compute in PyTorch.

Module = Any


def convnext() -> Module:
    models = torchvision_models()
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(32, 64, 2), block(64, None, 2)])


def swin() -> Module:
    return torchvision_models().SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10)


def gpt2() -> Module:
    transformers = pytest.importorskip("transformers")
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=101, n_positions=32, n_embd=48, n_layer=2, n_head=4, **ends)
    model = transformers.GPT2LMHeadModel(config)
    return Made(lambda self, ids: self.model(ids, use_cache=False).logits, model=model)


def bert() -> Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=96, max_position_embeddings=32))
    return Made(lambda self, ids, mask: self.model(ids, attention_mask=mask).last_hidden_state, model=model)


def image() -> tuple[Any, ...]:
    return images(2, 3, 64, 64)


def words() -> tuple[Any, ...]:
    return (torch.randint(0, 101, (2, 16)),)


def masked_words() -> tuple[Any, ...]:
    return (*words(), (torch.arange(16) < torch.tensor([[16], [9]])).long())


NETWORKS: dict[str, tuple[Callable[[], Module], Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "resnet18": (lambda: torchvision_models().resnet18(), image, NEW),
    "mobilenet": (lambda: torchvision_models().mobilenet_v3_small(), image, NEW),
    "convnext": (convnext, image, NEW),
    "gpt2": (gpt2, words, NEW),
    "bert": (bert, masked_words, NEW),
    "swin": (swin, image, NEW),
    "vit": (lambda: torchvision_models().VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=10), image, NEW),
}
"""A network, its inputs, and the exporter that writes it."""
QUICK = {"convnext", "bert"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NETWORKS]
)
def test_outputs_are_as_close_to_float64_as_pytorchs(name: str, tmp_path: Path) -> None:
    build, draw, exporter = NETWORKS[name]
    torch.manual_seed(3)
    module, values, random = build().eval(), draw(), np.random.default_rng(3)
    with torch.no_grad():
        for parameter in module.parameters():
            # Some start at zero, and then hide what is before them.
            parameter.add_(torch.as_tensor(random.normal(0, 0.02, parameter.shape), dtype=parameter.dtype))
    export(module, values, tmp_path / "model.onnx", **exporter)
    network = autotm.from_onnx(tmp_path / "model.onnx", inputs=[value.numpy() for value in values])
    assert (network.name, network.batch, network.training) == ("model", 2, None)
    outputs = plain_steps.compiled(network, tmp_path).run(1).after[0]
    with torch.no_grad():
        rounded = {"output": module(*values).numpy()}
        doubled = [value.double() if value.is_floating_point() else value for value in values]
        exact = {"output": module.double()(*doubled).numpy()}
    assert distance(outputs, exact) <= ALLOWED * distance(rounded, exact)


# Files that are trained: losses and weights after a step, against PyTorch in float64.

AS_IT_IS = {**NEW, "optimize": False}
"""Weights as they are: optimizing folds batch norm into convolutions."""
FAST = {"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05, "step_tolerance": 1000.0}


def attends() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
    return Made(
        lambda self, ids: self.head(self.layer(self.words(ids) + self.places)), words=nn.Embedding(50, 32),
        places=nn.Parameter(torch.zeros(1, 12, 32)), layer=layer, head=nn.Linear(32, 50),
    )  # fmt: skip


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


def stepped(module: nn.Module, x: Any, labels: Any, dtype: torch.dtype) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the weights after a step of SGD, batch norm by its running averages."""
    module = copy.deepcopy(module).to(dtype)
    scores = module(x.to(dtype) if x.is_floating_point() else x)
    loss = nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=RATE).step()
    return loss.item(), {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["convolutional", "attends"])
def test_a_step_is_as_close_to_float64_as_pytorchs(kind: str, tmp_path: Path) -> None:
    module = started(convolutional() if kind == "convolutional" else attends())
    x = images(4, 3, 16, 16)[0] if kind == "convolutional" else torch.randint(0, 50, (3, 12))
    classes, shape = (10, (4,)) if kind == "convolutional" else (50, (3, 12))
    labels = torch.randint(0, classes, shape)
    export(module, (x,), tmp_path / "model.onnx", **AS_IT_IS)
    rule = autotm.Sgd(RATE)
    network = autotm.from_onnx(tmp_path / "model.onnx", inputs=(x.numpy(),), loss="cross_entropy", training=rule)
    step = plain_steps.compiled(network, tmp_path)
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
    with_loss = Made(lambda self, x, labels: F.cross_entropy(self.module(x), labels), module=module)
    export(with_loss.eval(), (x, labels), tmp_path / "with_loss.onnx", **AS_IT_IS)
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
    export(started(convolutional()), (torch.randn(4, 3, 16, 16),), tmp_path / "model.onnx", **AS_IT_IS)
    network = autotm.from_onnx(tmp_path / "model.onnx", loss="cross_entropy", fixed=("0.*", "9.bias"))
    assert set(network.parameters) == {"1.weight", "1.bias", "4.weight", "4.bias", "8.weight", "8.bias", "9.weight"}
    assert network.origin is not None
    assert {"0.weight", "9.bias", "1.running_mean", "1.running_var"} <= set(network.origin.kept)
