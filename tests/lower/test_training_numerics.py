"""Three steps of every network are as close to a float64 reference as PyTorch's own float32 is."""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the float64 reference is PyTorch: make test-torch installs it")

import plain_steps  # noqa: E402
from plain_steps import Arrays, distance  # noqa: E402

from autotm import zoo  # noqa: E402
from autotm.memory.torch_device import device_of  # noqa: E402
from autotm.model.training import Sgd, Training  # noqa: E402
from autotm.runtime.streams.framework import expected_loss  # noqa: E402
from autotm.zoo import Network  # noqa: E402
from autotm.zoo.paper import densenet  # noqa: E402
from autotm.zoo.torch_reference import TorchNetwork  # noqa: E402

STEPS = 3
ALLOWED = 3.0
LEFT_TO_COMPARE = 1.0
"""Where PyTorch's float32 is off by more than all that a step changed in the weights, a comparison says nothing."""
SPACING = float(np.finfo(np.float32).eps)
"""Spacing of float32 numbers: where PyTorch's loss is exact by chance, its error counts as this."""
SCORE = 20.0
SHALLOW_BRANCH = 0.1
TELLING = 1e-2
"""A margin below this share of the loss tells one network from another."""


def high_scores(network: Network, arrays: Arrays) -> None:
    """Scores far above zero.

    The loss of the residual and dense networks takes the logarithm of scores of both signs: its slope near zero, and
    fifty layers, amplify the last bit so much that after two steps of any float32 program not a digit is left.
    """
    arrays[list(network.parameters)[-1]][...] = SCORE


def quiet_branches(network: Network, arrays: Arrays) -> None:
    """Also, each block begins near the identity: the last batch norm of its branch starts with a small scale.

    With ones, two hundred layers leave no digit of the first gradient (Goyal et al., arXiv:1706.02677, 5.1, use zeros).
    """
    high_scores(network, arrays)
    layers = [name for name in network.parameters if name.startswith(("conv_weight", "norm_scale"))]
    for before, weight, scale in zip(layers[:-2], layers[1:-1], layers[2:], strict=True):
        widens = weight.startswith("conv") and arrays[weight].shape[-1] == 4 * arrays[weight].shape[-2]
        if widens and before.startswith("norm") and arrays[weight].shape[-2] == len(arrays[before]):
            arrays[scale][...] = SHALLOW_BRANCH


def loud_edges(network: Network, arrays: Arrays) -> None:
    """Convolutions make up for the zeros that they see beyond the edge, or four hundred of them leave no signal.

    Of a window three wide over s pixels, the pattern that fades slowest keeps (1 + 2 cos(pi / (s + 1))) / 3 of its
    variance in each direction: the largest eigenvalue of the average of neighbours.
    """
    convolutions = [name for name in network.parameters if name.startswith("conv_weight")]
    pixels = arrays[next(iter(network.inputs))].shape[1]
    sizes = [pixels >> group for group, layers in enumerate((82, 82, 83, 83, 83)) for _ in range(layers)]
    for name, size in zip(convolutions, sizes, strict=True):
        arrays[name][...] *= 3 / (1 + 2 * np.cos(np.pi / (size + 1)))


@dataclass(frozen=True)
class Case:
    """A network at a size, its learning rate where it is not its own, its starts: made how, how many."""

    build: Callable[[], Network]
    rate: float | None = None
    prepare: Callable[[Network, Arrays], None] = lambda _network, _arrays: None
    starts: int = 3


CASES = {
    "mlp": Case(lambda: zoo.build("mlp", {"batch": 16, "width": 256})),
    "mnist": Case(lambda: zoo.build("mnist", {"batch": 8})),
    "vgg19": Case(lambda: zoo.build("vgg19", {"batch": 2, "image": 32})),
    "inception_v4": Case(lambda: zoo.build("inception_v4", {"batch": 2, "image": 75}), 0.01),
    "resnet50": Case(lambda: zoo.build("resnet50", {"batch": 4, "image": 64}), 1e-5, high_scores),
    "resnet200": Case(lambda: zoo.build("resnet200", {"batch": 4, "image": 64}), 0.1, quiet_branches),
    "dense_blocks": Case(lambda: densenet("dense_blocks", 4, 64, (1, 1)), 1e-5, high_scores),
    "densenet264": Case(lambda: zoo.build("densenet264", {"batch": 4, "image": 64}), 1e-5, high_scores),
    "vgg416": Case(lambda: zoo.build("vgg416", {"batch": 1, "image": 32}), 1e-3, loud_edges, 1),
    "transformer": Case(lambda: zoo.build("transformer", {"batch": 1, "sequence": 8, "vocabulary": 500})),
    "dlrm": Case(lambda: zoo.build("dlrm", {"batch": 16, "rows": 100})),
}

QUICK = {"mlp", "mnist", "dlrm", "dense_blocks"}
"""Products, convolutions, pools, batch norm, concatenations, tables; attention is quick in test_torch_steps."""


def torch_step(network: Network, arrays: Arrays, dtype: torch.dtype) -> tuple[float, Arrays]:
    """Loss of a step from these arrays, and the weights after it."""
    model = TorchNetwork(network, arrays, dtype)
    loss = model()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=network.training.rule.learning_rate).step()
    return loss.item(), {name: model.array(name).astype(np.float64) for name in network.parameters}


def errors_of(step: tuple[float, Arrays], exact: tuple[float, Arrays], start: Arrays) -> tuple[float, float]:
    """Relative error of the loss, and root-mean-square error of all weights, relative to how far they went."""
    (loss, weights), (exact_loss, exact_weights) = step, exact
    return abs(loss - exact_loss) / abs(exact_loss), distance(weights, exact_weights) / distance(start, exact_weights)


def errors(
    case: Case, network: Network, compiled: plain_steps.Compiled, seed: int
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Errors of autotm and of PyTorch in float32 against PyTorch in float64, in STEPS steps from one start.

    PyTorch takes each step from the weights that autotm's last one left: after several steps of its own, two float32
    programs differ by chance alone.
    """
    steps = compiled.run(STEPS, seed, lambda arrays: case.prepare(network, arrays))
    pairs = []
    for before, after in itertools.pairwise([steps.start, *steps.after]):
        exact, single = (torch_step(network, before, dtype) for dtype in (torch.float64, torch.float32))
        start, weights = (
            {name: arrays[name].astype(np.float64) for name in network.parameters} for arrays in (before, after)
        )
        ours = float(after["loss"]), weights
        pairs.append((errors_of(ours, exact, start), errors_of(single, exact, start)))
        if seed == 0 and len(pairs) == 1:
            assert_within_margin(network, before, ours[0], single[0])
    return pairs


def assert_within_margin(network: Network, arrays: Arrays, ours: float, theirs: float) -> None:
    """Losses of a first step are as close as records of `save_on_cpu` demand."""
    exact, tolerance = expected_loss(network, arrays, device_of(torch.device("cpu")), 1)
    assert tolerance <= TELLING * abs(exact)
    assert abs(theirs - ours) <= tolerance
    assert abs(ours - exact) <= tolerance


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(CASES)]
)
def test_as_close_to_float64_as_pytorch(name, tmp_path, objects) -> None:
    case = CASES[name]
    network = case.build()
    if case.rate is not None:
        network = dataclasses.replace(network, training=Training(Sgd(case.rate)))
    compiled = plain_steps.compiled(network, tmp_path, objects)
    pairs = np.array([errors(case, network, compiled, seed) for seed in range(case.starts)])
    assert np.median(pairs[:, :, 1, 1]) <= LEFT_TO_COMPARE, f"nothing to compare with: {pairs[:, :, 1].tolist()}"
    theirs = np.maximum(pairs[:, :, 1], [SPACING, 0.0])
    # The median: where rounding decides a ReLU, a maximum or a floor the other way, which is chance, a gradient jumps,
    # in one program or in the other.
    ratios = np.median(pairs[:, :, 0] / theirs, axis=(0, 1))
    assert np.all(ratios <= ALLOWED), f"errors over PyTorch's (loss, weights): {ratios}; by start {pairs.tolist()}"
