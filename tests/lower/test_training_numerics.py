"""Three steps of every network are as close to a float64 reference as PyTorch's own float32 is."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the float64 reference is PyTorch: make test-torch installs it")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from autotm import zoo  # noqa: E402
from autotm.kernels.library import KernelLibrary  # noqa: E402
from autotm.kernels.target import host_target  # noqa: E402
from autotm.lower import lower_network  # noqa: E402
from autotm.memory.tiers import open_tiers  # noqa: E402
from autotm.model.machine import load_machine  # noqa: E402
from autotm.runtime.arguments import Arguments  # noqa: E402
from autotm.runtime.executor import prepare  # noqa: E402
from autotm.runtime.plain import plain_program  # noqa: E402
from autotm.zoo.densenet import densenet  # noqa: E402
from torch_network import TorchNetwork  # noqa: E402

STEPS = 3
ALLOWED = 3.0
SEEDS = 3
NETWORKS = {
    "mlp": lambda: zoo.build("mlp", {"batch": 16, "width": 256}),
    "vgg19": lambda: zoo.build("vgg19", {"batch": 2, "image": 32}),
    "inception_v4": lambda: zoo.build("inception_v4", {"batch": 2, "image": 75}),
    "resnet50": lambda: zoo.build("resnet50", {"batch": 4, "image": 64}),
    "densenet": lambda: densenet("densenet", 4, 32, (1, 2, 1, 1)),
    "transformer": lambda: zoo.build("transformer", {"batch": 1, "sequence": 8, "vocabulary": 500}),
    "dlrm": lambda: zoo.build("dlrm", {"batch": 16, "rows": 100}),
}
WELL_CONDITIONED = {"resnet50", "densenet"}
"""Networks that start with scores far above zero and take small steps. Their loss takes the logarithm of scores of
both signs: its slope near zero, and fifty layers, amplify the last bit so much that after two steps of any float32
program not a digit is left to compare."""
SCORE, SMALL_STEP = 20.0, 1e-5


def torch_run(network, arrays, dtype):
    """Losses of STEPS steps and the weights after them."""
    model = TorchNetwork(network, arrays, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=network.learning_rate)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = model()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), {name: model.array(name).astype(np.float64) for name in network.parameters}


def autotm_run(network, graph, library, machine, arguments):
    """The same, by the plain step."""
    program = plain_program(graph)
    losses = []
    with open_tiers(machine, None, program.fast_bytes, 0, ROOT / "config" / "devices", stretch=1.0) as tiers:
        executor = prepare(graph, library, program, arguments, tiers)
        for _ in range(STEPS):
            executor.step()
            losses.append(float(arguments.value("loss")))
    return np.array(losses), {name: arguments.value(name).astype(np.float64) for name in network.parameters}


def weight_error(found, exact):
    """Root-mean-square error of all weights together, relative to their size."""
    squares = sum(np.sum((found[name] - exact[name]) ** 2) for name in exact)
    return np.sqrt(squares / sum(np.sum(value**2) for value in exact.values()))


def loss_error(found, exact):
    """Largest relative error of a step's loss."""
    return np.max(np.abs(found - exact) / np.abs(exact))


def errors(network, graph, library, machine, seed):
    """Loss and weight errors of autotm and of PyTorch in float32 against PyTorch in float64, from one start."""
    arguments = Arguments.allocate(graph)
    arguments.fill(seed)
    if network.learning_rate == SMALL_STEP:
        arguments.value(list(network.parameters)[-1])[...] = SCORE
    arrays = {tensor: arguments.value(tensor).copy() for tensor in (*network.inputs, *network.parameters)}
    exact_losses, exact = torch_run(network, arrays, torch.float64)
    assert np.all(exact_losses[1:] != exact_losses[:-1]), "the weights must have changed"
    runs = (autotm_run(network, graph, library, machine, arguments), torch_run(network, arrays, torch.float32))
    return [(loss_error(losses, exact_losses), weight_error(weights, exact)) for losses, weights in runs]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_as_close_to_float64_as_pytorch(name, tmp_path):
    machine = load_machine(ROOT / "config" / "machines" / "laptop.yaml")
    network = NETWORKS[name]()
    if name in WELL_CONDITIONED:
        network = dataclasses.replace(network, learning_rate=SMALL_STEP)
    path = tmp_path / "kernels.so"
    graph = lower_network(network, "test", host_target(), machine.threads, tmp_path / "graph.json", path, {})
    library = KernelLibrary.load(path)
    found = np.array([errors(network, graph, library, machine, seed) for seed in range(SEEDS)])
    # The median over starts: where rounding decides a ReLU, a maximum or a floor the other way, which is chance, a
    # gradient jumps, in one program or in the other.
    ratios = np.median(found[:, 0] / found[:, 1], axis=0)
    assert np.all(ratios <= ALLOWED), f"errors over PyTorch's (loss, weights): {ratios}; by start {found.tolist()}"
