"""Operators as exporters write them, older ones and newer ones, compute what they compute in PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the reference is PyTorch: make test-torch installs it")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import plain_steps  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch_modules import images  # noqa: E402

import autotm  # noqa: E402
from autotm.zoo import with_values_stored  # noqa: E402


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(32, 96)

    def forward(self, x: Any) -> Any:
        parts = self.all(x).reshape(x.shape[0], -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts, is_causal=True)


class Lines(nn.Module):
    """Convolutions along one axis, a slice of a parameter, bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.places = nn.Conv1d(8, 6, 3, stride=2, padding=1), nn.Parameter(*images(1, 6, 7))

    def forward(self, x: Any) -> Any:
        found = self.conv(x)
        return torch.softmax(found + self.places[:, :, : found.shape[2]], 1).clamp(0.05, 0.3)


class Images(nn.Module):
    """What moves pixels: transposed convolution, resizing, padding, flips, running sums, products, tiles, best ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.slope = nn.ConvTranspose2d(3, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.PReLU(4)

    def forward(self, x: Any) -> Any:
        x = self.slope(self.norm(self.conv(x)))
        x = F.pad(F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 0, 1), mode="reflect")
        x = x.flip(2).cumsum(1)
        x = F.hardswish(torch.einsum("bchw,bcwk->bchk", x[:, :, :6, :6], x[:, :, :6, :7]))
        deviation = x.std(dim=(2, 3))
        return torch.where(deviation > 0.5, deviation, -deviation).tile(1, 2), F.silu(x).amax(-1), x.topk(2, -1)[0]


LINES, IMAGES, WORDS = (2, 8, 9), (2, 3, 5, 5), (2, 6, 32)
NEW, OLD = {"dynamo": True, "external_data": False}, {"dynamo": False}
ANY = {"batch": torch.export.Dim("batch"), "words": torch.export.Dim("words")}
CASES: list[tuple[type[nn.Module], tuple[int, ...], dict[str, Any]]] = [
    (Lines, LINES, NEW),
    (Lines, LINES, {**OLD, "opset_version": 11}),
    (Images, IMAGES, NEW),
    (Images, IMAGES, {**OLD, "opset_version": 16}),
    (Attention, WORDS, {**NEW, "opset_version": 23}),
    (Attention, WORDS, {**NEW, "dynamic_shapes": ({0: ANY["batch"], 1: ANY["words"]},)}),
    (Attention, WORDS, {**OLD, "opset_version": 14, "input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "shape", "options"), CASES)
def test_outputs_are_pytorchs(
    kind: type[nn.Module], shape: tuple[int, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(2)
    module, (x,) = kind().eval(), images(*shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(tmp_path / "model.onnx"), verbose=False, **options)
    network = autotm.from_onnx(tmp_path / "model.onnx", inputs=x.numpy())
    after = plain_steps.compiled(with_values_stored(network, tmp_path), tmp_path).run(1).after[0]
    with torch.no_grad():
        wanted = module(x)
    for name, value in zip(network.results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_allclose(after[name], value.numpy(), rtol=2e-5, atol=2e-5)
