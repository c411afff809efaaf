"""Small modules of every kind, their batches, and what plain PyTorch leaves after some steps of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch

import autotm
from autotm.api.offload.step import OffloadedStep
from autotm.memory.linux.pools import NodePool
from autotm.model.errors import InfeasibleLimitError
from autotm.model.graph import Tier
from autotm.model.system import SystemMemory

nn, F = torch.nn, torch.nn.functional
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
THREADS = pytest.mark.skipif(DEVICE.type == "cuda", reason="copies by threads: on a CPU only")


def binding_fails() -> str:
    """Why pages cannot be bound to memory node 0 here; empty where they can."""
    try:
        NodePool(Tier.SLOW, 4096, (0,), "none", SystemMemory())
    except autotm.AutotmError as error:
        return str(error)
    return ""


ON_A_NODE = pytest.mark.skipif(bool(binding_fails()), reason=f"NOT TESTED: memory nodes: {binding_fails()}")
torch.backends.cudnn.enabled = False  # Its batch norm rounds otherwise than PyTorch's own, which captured steps take.
QUICK = {"kernel_s": 1e-4, "time_limit_s": 5.0, "recompute": False}


class Block(nn.Module):
    """A block of a residual network, with activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            hidden = F.relu(self.norm1(self.first(x)), inplace=True)
            hidden = self.norm2(self.second(hidden))
            hidden += x
            x = F.relu(hidden, inplace=True)
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """Two layers with dropout; words are embedded and predicted by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layers = (nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True) for _ in range(2))
        self.layers = nn.Sequential(*layers)
        self.predict = nn.Linear(32, 50, bias=False)
        self.predict.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.predict(self.layers(self.embed(words))).flatten(0, 1)


class Odd(nn.Module):
    """Gradients that share memory or have none, a parameter without one, views that are split, a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.more = nn.Linear(16, 48), nn.Linear(16, 16)
        self.one, self.other, self.unused = (nn.Parameter(torch.zeros(16)) for _ in range(3))
        self.more.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.line(x).chunk(3, 1)
        mixed = torch.softmax(query @ key.t(), -1) @ value
        mixed[:, 0] = 0.5
        return (self.more(torch.sin(mixed)) + self.one + self.other).sum()


class Teacher(nn.Module):
    """A parameter that follows another one without a gradient, a buffer that forward assigns, one written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(16, 32), nn.Linear(16, 32).requires_grad_(False)
        self.scale = torch.tensor(0.5)  # No buffer: a constant.
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.teacher.weight.mul_(0.9).add_(self.student.weight, alpha=0.1)
        self.steps = self.steps + 1
        out = torch.tanh(self.student(x))
        self.mean.lerp_(out.detach().mean(0), 0.1)
        return F.mse_loss(out * self.scale, self.teacher(x).detach() / self.steps - self.mean)


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.3), nn.Linear(64, 64), nn.GELU(),
        nn.Linear(64, 5),
    )  # fmt: skip


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip


def deep() -> nn.Module:
    layers = [(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3)) for _ in range(6)]
    return nn.Sequential(*itertools.chain.from_iterable(layers), nn.Linear(32, 5))


@dataclass
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]
    targets: Callable[[], torch.Tensor] | None = None
    loss: Callable[..., torch.Tensor] | None = None

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().to(DEVICE)

    def batch(self) -> tuple[torch.Tensor, ...]:
        return tuple(build().to(DEVICE) for build in (self.inputs, self.targets) if build)


CASES = {
    "perceptron": Case(perceptron, lambda: torch.randn(128, 16), lambda: torch.randint(5, (128,)), F.cross_entropy),
    "one hot": Case(  # which PyTorch asserts something of, by operators without results
        perceptron,
        lambda: torch.randn(128, 16),
        lambda: torch.randint(5, (128,)),
        lambda output, labels: -(output.log_softmax(1) * F.one_hot(labels, 5)).sum(),
    ),
    "convolutions": Case(
        convolutions, lambda: torch.randn(8, 3, 16, 16), lambda: torch.randint(5, (8,)), F.cross_entropy
    ),
    "deep": Case(deep, lambda: torch.randn(256, 32), lambda: torch.randint(5, (256,)), F.cross_entropy),
    "block": Case(Block, lambda: torch.randn(8, 8, 12, 12), lambda: torch.randint(5, (8,)), F.cross_entropy),
    "transformer": Case(
        Transformer, lambda: torch.randint(50, (4, 12)), lambda: torch.randint(50, (48,)), F.cross_entropy
    ),
    "odd": Case(Odd, lambda: torch.randn(32, 16)),
    "teacher": Case(Teacher, lambda: torch.randn(64, 16)),
}
STEPS = 3


def offloaded(name: str, budget: str | float, module: nn.Module | None = None, **options: object) -> OffloadedStep:
    case = CASES[name]
    inputs, *targets = case.batch()
    module = case.module() if module is None else module
    return autotm.offload(module, inputs, case.loss, budget, targets=targets, **{**QUICK, **options})


@cache
def least(name: str) -> int:
    return least_of(lambda: offloaded(name, 1))


def least_of(make: Callable[[], object]) -> int:
    """The least budget, as the error of too small a one names it."""
    with pytest.raises(InfeasibleLimitError) as error:
        make()
    assert error.value.smallest_bytes is not None
    assert str(error.value.smallest_bytes) in str(error.value)
    return error.value.smallest_bytes


def trained(module: nn.Module, name: str, step: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Losses, gradients, parameters and buffers of some steps, each from its own seed."""
    optimizer, tensors = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), []
    for seed in range(STEPS):
        torch.manual_seed(100 + seed)
        batch = CASES[name].batch()
        optimizer.zero_grad()
        tensors.append(step(*batch).detach().clone())
        tensors += [torch.empty(0) if each.grad is None else each.grad.clone() for each in module.parameters()]
        optimizer.step()
    return [*tensors, *(value.clone() for value in module.state_dict().values())]


def plainly(name: str) -> list[torch.Tensor]:
    case, module = CASES[name], CASES[name].module()

    def step(inputs: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        loss = module(inputs) if case.loss is None else case.loss(module(inputs), *targets)
        loss.backward()
        return loss

    return trained(module, name, step)


def same_bits(actual: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[bool]:
    return [one.shape == other.shape and torch.equal(one, other) for one, other in zip(actual, wanted, strict=True)]
