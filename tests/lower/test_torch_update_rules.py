"""Ten steps by every update rule are as close to `torch.optim` in float64 as its own float32 is."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the float64 reference is PyTorch: make test-torch installs it")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import plain_steps  # noqa: E402

from autotm import zoo  # noqa: E402
from autotm.model.training import Adam, AdamW, Sgd, Training  # noqa: E402
from autotm.zoo import Network  # noqa: E402
from autotm.zoo.torch_reference import TorchNetwork, optimizer_of  # noqa: E402

STEPS, STARTS = 10, 3
ALLOWED = 3.0

NETWORKS: dict[str, Callable[[], Network]] = {
    "mlp": lambda: zoo.build("mlp", {"batch": 16, "width": 64}),
    "mnist": lambda: zoo.build("mnist", {"batch": 4, "image": 14}),
    "dlrm": lambda: zoo.build("dlrm", {"batch": 16, "rows": 50}),
}
RULES = {
    "momentum": Training(Sgd(0.005, momentum=0.9)),
    "nesterov": Training(Sgd(0.005, momentum=0.9, weight_decay=0.01, nesterov=True)),
    "damped": Training(Sgd(0.005, momentum=0.9, dampening=0.3)),
    "adam": Training(Adam(1e-3, weight_decay=0.01)),
    "adamw": Training(AdamW(1e-3)),
    "adamw, clipped": Training(AdamW(1e-3), clip_norm=1.0),
    "sgd, clipped": Training(Sgd(0.05), clip_norm=0.5),
}
QUICK = [("mlp", "nesterov"), ("mlp", "adamw, clipped")]
"""Unclipped and clipped: test_update_rules has every rule against its formula, test_torch_schedules against PyTorch."""
CASES = [
    *(("mlp", rule) for rule in RULES),
    ("mnist", "adamw"),
    ("mnist", "adamw, clipped"),
    ("dlrm", "adamw"),
    ("dlrm", "momentum"),
]


def without_decay_of_vectors(network: Network, training: Training) -> Training:
    """Weight decay is for matrices only: a group of parameters with a rule of its own."""
    if not getattr(training.rule, "weight_decay", 0):
        return training
    vectors = [var.name for var in network.module["main"].params if len(var.ty.shape) == 1]
    free = dataclasses.replace(training.rule, weight_decay=0.0)
    return dataclasses.replace(training, rules={name: free for name in vectors if name in network.parameters})


def torch_run(
    network: Network, training: Training, arrays: plain_steps.Arrays, dtype: torch.dtype
) -> plain_steps.Arrays:
    model = TorchNetwork(network, arrays, dtype, sparse=False)
    optimizer = optimizer_of(dataclasses.replace(network, training=training), model)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model().backward()
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
    return {name: model.array(name).astype(np.float64) for name in network.parameters}


def distance(found: plain_steps.Arrays, exact: plain_steps.Arrays) -> float:
    return float(np.sqrt(sum(np.sum((found[name] - value) ** 2) for name, value in exact.items())))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "rule"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_weights_are_as_close_to_float64_as_pytorchs(name: str, rule: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    training = without_decay_of_vectors(network, RULES[rule])
    network = dataclasses.replace(network, training=training)
    ratios, step = [], plain_steps.compiled(network, tmp_path)
    for seed in range(STARTS):
        steps = step.run(STEPS, seed)
        exact = torch_run(network, training, steps.start, torch.float64)
        rounded = distance(torch_run(network, training, steps.start, torch.float32), exact)
        assert rounded <= distance(steps.start, exact), "nothing to compare with"
        ratios.append(distance(steps.after[-1], exact) / rounded)
    # The median, as in test_training_numerics: where rounding decides a ReLU the other way, a gradient jumps.
    assert np.median(ratios) <= ALLOWED, ratios
