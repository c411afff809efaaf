"""An imported step is compared with PyTorch before it is timed: faults of the importer are found, and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="steps are compared with PyTorch's: make test-torch installs it")

from plain_steps import compared  # noqa: E402
from torch_cases import Made, images  # noqa: E402
from tvm import relax  # noqa: E402

from autotm.stages import compare  # noqa: E402
from autotm.stages.compare import DifferentStepError  # noqa: E402
from autotm.zoo import Network, from_torch  # noqa: E402
from autotm.zoo.torch import network as imports  # noqa: E402
from autotm.zoo.torch.backward import JointImporter  # noqa: E402
from autotm.zoo.torch.importer import imported_step  # noqa: E402

nn, F = torch.nn, torch.nn.functional
SIDE, WORDS, WIDTH = 8, 12, 8


class Many(nn.Module):
    """A network with an operator of most kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        self.up, self.words = nn.ConvTranspose2d(WIDTH, WIDTH, 2, stride=2), nn.Embedding(WORDS, WIDTH)
        self.line, self.other, self.rows = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.drop, self.groups = nn.Dropout(0.3), nn.GroupNorm(2, WIDTH)
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.conv(x)))
        y = F.avg_pool2d(F.max_pool2d(self.groups(self.up(y)), 2), 2, padding=1)
        y = F.interpolate(F.pad(y, (1, 0, 0, 1)), scale_factor=2.0, mode="nearest").mean((2, 3))
        table = self.words(words)
        rows = self.rows(F.softmax(self.line(table) @ table.transpose(1, 2), -1) @ table)
        first, second = self.drop(torch.cat([y, F.gelu(rows.sum(1))], 1)).split(WIDTH, 1)
        self.average.mul_(0.9).add_(first.detach().mean(0), alpha=0.1)
        first = torch.where(first > 0.1, first.exp(), torch.sigmoid(second)) - self.average.tanh()
        scores = self.other(torch.add(first, second, alpha=0.5) / (1.5 + second.clamp(-1, 1)))
        return F.cross_entropy(scores.cumsum(1), words[:, 0] % WIDTH) + scores[:, 1:3].abs().sqrt().amax(1).sum() * 0.1


Distort = Callable[[relax.Expr], relax.Expr]
negated, zeroed = relax.op.negative, relax.op.zeros_like


def scaled(value: relax.Expr) -> relax.Expr:
    return relax.op.multiply(value, relax.const(1.03, "float32"))


def turned_round(value: relax.Expr) -> relax.Expr:
    return relax.op.flip(value, 0)


FAULTS: dict[str, Distort] = {
    "add.Tensor": scaled, "sub.Tensor": negated, "mul.Tensor": scaled, "div.Tensor": scaled, "relu.default": negated,
    "convolution.default": scaled, "convolution_backward.default": negated, "max_pool2d_with_indices.default": scaled,
    "_native_batch_norm_legit_functional.default": scaled, "native_batch_norm_backward.default": scaled,
    "native_group_norm.default": turned_round, "native_group_norm_backward.default": zeroed,
    "max_pool2d_with_indices_backward.default": scaled, "avg_pool2d.default": scaled,
    "avg_pool2d_backward.default": scaled,
    "upsample_nearest2d.default": turned_round, "constant_pad_nd.default": turned_round, "mean.dim": scaled,
    "embedding.default": turned_round, "embedding_dense_backward.default": zeroed, "bmm.default": scaled,
    "_softmax_backward_data.default": scaled, "native_layer_norm.default": negated, "sum.dim_IntList": scaled,
    "native_layer_norm_backward.default": scaled, "native_dropout_backward.default": scaled, "cat.default": negated,
    "gelu.default": scaled, "where.self": negated, "exp.default": scaled,
    "sigmoid.default": scaled, "clamp.default": zeroed, "cumsum.default": negated, "sqrt.default": scaled,
}  # fmt: skip
"""Conversions by name of PyTorch's operator, each with what becomes of its result."""
QUICK = ("add.Tensor", "convolution_backward.default", "embedding_dense_backward.default")


def imported(**options: Any) -> Network:
    torch.manual_seed(1)
    return from_torch(Many(), (*images(4, 3, SIDE, SIDE), torch.arange(4 * 5).reshape(4, 5) % WORDS), **options)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def distort(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the conversion of an operator give something else."""
    conversions = JointImporter.create_convert_map

    def faulty(self: JointImporter) -> dict[str, Callable[[Any], Any]]:
        every = conversions(self)
        assert name in every, "the fault is of an operator that exists"

        def wrong(node: Any) -> Any:
            value = every[name](node)
            first, *rest = value if isinstance(value, tuple) else (value,)
            distorted = self.block_builder.emit(FAULTS[name](first))
            return (distorted, *rest) if isinstance(value, tuple) else distorted

        return {**every, name: wrong}

    monkeypatch.setattr(JointImporter, "create_convert_map", faulty)


def test_a_step_that_is_right_says_how_near_it_is(objects: Path) -> None:
    """Dropout included: PyTorch is handed what is drawn here."""
    text = compared(imported(), objects)
    assert text.startswith(f"PyTorch {torch.__version__}: ")
    assert "of each of 2 steps are at most" in text


def drawing(self: Made, x: torch.Tensor) -> torch.Tensor:
    """Random numbers of every kind."""
    y = F.dropout(self.line(x), 0.3)
    drawn = torch.empty_like(y).bernoulli_(0.4) + torch.empty_like(y).exponential_()
    return (y * (torch.rand_like(y) + torch.randn_like(y)) + y * drawn).square().mean()


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_random_numbers_are_the_same_on_both_sides(kernels: str, objects: Path) -> None:
    network = from_torch(Made(drawing, line=nn.Linear(8, 8)), images(4, 8), kernels=kernels)
    assert "of each of 2 steps are at most" in compared(network, objects)


def test_without_memory_for_float64_two_orders_of_float32_are_taken(
    objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_TIMES_PEAK", 10**12)
    assert "as far from its float32 in another order as its own float32" in compared(imported(), objects)
    distort("mul.Tensor", monkeypatch)
    with pytest.raises(DifferentStepError, match=r"mul\.Tensor"):
        compared(imported(), objects)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAULTS]
)
def test_a_fault_is_found_and_its_operator_named(name: str, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distort(name, monkeypatch)
    operator = name.partition(".")[0]
    source = operator.removesuffix("_backward").removesuffix("_backward_data")
    with pytest.raises(DifferentStepError) as raised:
        compared(imported(), objects)
    message = str(raised.value)
    assert operator in message or (source != operator and source in message) or "getitem" in message, message
    assert Path(__file__).name in message


def test_results_that_are_taken_for_each_other_are_found(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = imported_step

    def exchanged(captured: Any, **options: Any) -> Any:
        gradients = dict(captured.gradients)
        if gradients:
            gradients["line.weight"], gradients["other.weight"] = gradients["other.weight"], gradients["line.weight"]
            captured = imports.replace(captured, gradients=gradients)
        return step(captured, **options)

    monkeypatch.setattr(imports, "imported_step", exchanged)
    with pytest.raises(DifferentStepError, match=r"its (line|other).weight.gradient is off by .* of its size"):
        compared(imported(), objects)


def test_roundings_of_the_second_step_are_no_different_operator(
    objects: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The running statistics of batch norm are others by then than those that its operators start with."""
    shares, worst = iter((0.0, 2.0)), compare._worst
    monkeypatch.setattr(compare, "_worst", lambda *results: (next(shares), worst(*results)[1]))
    assert compared(imported(), objects).startswith("PyTorch")
    assert "no operator is off" in caplog.text


def test_a_capture_that_is_not_the_module_is_found(objects: Path) -> None:
    """A module that computes something else when it is called than when it was traced."""

    def changing(self: Made, x: torch.Tensor) -> torch.Tensor:
        factor = 1.0 if torch.compiler.is_compiling() or type(x) is not torch.Tensor else 3.0
        return (self.line(x) * factor).square().mean()

    with pytest.raises(DifferentStepError, match=r"itself computes another .* than the graph that it was captured as"):
        compared(from_torch(Made(changing, line=nn.Linear(4, 4)), images(5, 4)), objects)


def test_outputs_of_any_type_are_compared(objects: Path) -> None:
    def typed(_: Made, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x > 0, x.argmax(1), torch.fft.fft(x), x.half(), x.bfloat16(), x.double(), x.log(), x * 2

    text = compared(from_torch(Made(typed), images(5, 4), mode="inference"), objects)
    assert text.startswith(f"PyTorch {torch.__version__}: ")


def test_a_network_of_ones_own_is_compared_with_nothing(objects: Path) -> None:
    from autotm import zoo

    assert compared(zoo.build("mlp", {"batch": 2, "width": 4}), objects) == "nothing"
