"""Networks that PyTorch exported to ONNX compute what they compute in PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the float64 reference is PyTorch: make test-torch installs it")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")

import plain_steps  # noqa: E402
from torch_modules import images  # noqa: E402

import autotm  # noqa: E402
from autotm.zoo import with_values_stored  # noqa: E402
from imported_models import torchvision_models  # noqa: E402

ALLOWED = 3.0
Module = Any


def resnet18() -> Module:
    return torchvision_models().resnet18()


def mobilenet() -> Module:
    return torchvision_models().mobilenet_v3_small()


def convnext() -> Module:
    models = torchvision_models()
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(32, 64, 2), block(64, None, 2)])


def swin() -> Module:
    return torchvision_models().SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=10)


def vit() -> Module:
    return torchvision_models().VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=10)


class Gpt2(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        ends = {"bos_token_id": 0, "eos_token_id": 0}
        self.model = GPT2LMHeadModel(GPT2Config(vocab_size=101, n_positions=32, n_embd=48, n_layer=2, n_head=4, **ends))

    def forward(self, ids: Any) -> Any:
        return self.model(ids, use_cache=False).logits


class Bert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        self.model = BertModel(BertConfig(**sizes, intermediate_size=96, max_position_embeddings=32))

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.model(ids, attention_mask=mask).last_hidden_state


def image() -> tuple[Any, ...]:
    return images(2, 3, 64, 64)


def words() -> tuple[Any, ...]:
    return (torch.randint(0, 101, (2, 16)),)


def masked_words() -> tuple[Any, ...]:
    return (*words(), (torch.arange(16) < torch.tensor([[16], [9]])).long())


CASES: dict[str, tuple[Callable[[], Module], Callable[[], tuple[Any, ...]], bool]] = {
    "resnet18": (resnet18, image, True),
    "resnet18, old exporter": (resnet18, image, False),
    "mobilenet": (mobilenet, image, True),
    "convnext": (convnext, image, True),
    "gpt2": (Gpt2, words, True),
    "bert": (Bert, masked_words, True),
    "swin": (swin, image, True),
    "swin, old exporter": (swin, image, False),
    "vit": (vit, image, True),
}
"""A network, its inputs, and whether PyTorch's new exporter writes it."""
QUICK = {"convnext", "bert"}


def export(module: Module, values: tuple[Any, ...], path: Path, *, is_new: bool) -> None:
    options = {"external_data": False} if is_new else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, values, str(path), dynamo=is_new, verbose=False, **options)


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.sum((found - exact) ** 2) / np.sum(exact**2)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_outputs_are_as_close_to_float64_as_pytorchs(name: str, tmp_path: Path) -> None:
    build, draw, is_new = CASES[name]
    torch.manual_seed(3)
    module, values, random = build().eval(), draw(), np.random.default_rng(3)
    with torch.no_grad():
        for parameter in module.parameters():
            # Some start at zero, and then hide what is before them.
            parameter.add_(torch.as_tensor(random.normal(0, 0.02, parameter.shape), dtype=parameter.dtype))
    export(module, values, tmp_path / "model.onnx", is_new=is_new)
    network = autotm.from_onnx(tmp_path / "model.onnx", inputs=[value.numpy() for value in values])
    assert (network.name, network.batch, network.training) == ("model", 2, None)
    step = plain_steps.compiled(with_values_stored(network, tmp_path), tmp_path)
    found = step.run(1).after[0]["output"]
    with torch.no_grad():
        rounded = module(*values).numpy()
        doubled = [value.double() if value.is_floating_point() else value for value in values]
        exact = module.double()(*doubled).numpy()
    assert distance(found, exact) <= ALLOWED * distance(rounded, exact)
