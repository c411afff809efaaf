"""Time PyTorch's recurrent layers, and a training step, through `autotm.compile` and in PyTorch; print medians.

    .venv-torch/bin/python benchmarks/control_flow.py [HIDDEN ...]

All run on one thread, alternately, after they were found equal. The last table is how long a loop takes to compile by
its steps. Other systems, and models of control flow: `make figures/control_flow`.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

import autotm
from autotm.control import compile_function
from autotm.zoo import loop_models

ROUNDS = 15
WORDS = 1000
TOLERANCE = 1e-4
"""Of float32 after 1000 steps."""


def layers(hidden: int) -> Iterator[tuple[str, dict[str, Callable[[], object]], np.ndarray]]:
    """Yield name, what is timed, and what each must return, of PyTorch's layers: two of them, 64 steps."""
    for kind, batch in itertools.product((torch.nn.LSTM, torch.nn.GRU), (1, 16)):
        layer, x = kind(hidden, hidden, num_layers=2).eval(), torch.randn(64, batch, hidden)
        compiled = autotm.compile(layer, x)
        runs = {"autotm.compile": lambda x=x, run=compiled: run(x)[0], "torch": lambda x=x, run=layer: run(x)[0]}
        yield f"{kind.__name__} batch {batch:2}", runs, layer(x)[0].numpy()


class Language(torch.nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, hidden: int) -> None:
        """Begin with weights as PyTorch draws them."""
        super().__init__()
        self.table, self.layers = torch.nn.Embedding(WORDS, hidden), torch.nn.LSTM(hidden, hidden, num_layers=2)
        self.out = torch.nn.Linear(hidden, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of the words that follow."""
        return self.out(self.layers(self.table(words))[0]).flatten(0, 1)


@torch.enable_grad()
def training(hidden: int) -> tuple[dict[str, Callable[[], object]], np.ndarray]:
    """Return what is timed, and the gradient of the first weight of the LSTM: steps of 64 words, batch 16."""
    model, words, following = Language(hidden), torch.randint(WORDS, (64, 16)), torch.randint(WORDS, (64 * 16,))
    loss = torch.nn.functional.cross_entropy
    compiled = autotm.compile(model, words, loss=loss, targets=(following,), mode="train")

    def eager(words: torch.Tensor, following: torch.Tensor) -> None:
        with torch.enable_grad():
            loss(model(words), following).backward()

    def run(step: Callable[..., object]) -> np.ndarray:
        model.zero_grad()
        step(words, following)
        return model.layers.weight_ih_l0.grad.numpy()

    return {"autotm.compile": partial(run, compiled), "torch": partial(run, eager)}, run(eager)


def timed_in_turn(name: str, hidden: int, runs: dict[str, Callable[[], object]], expected: np.ndarray) -> None:
    """Print median and quartiles of each run, which take turns; exit if one computes something else."""
    for system, run in runs.items():
        error = np.abs(np.asarray(run()) - expected).max()
        if not error < TOLERANCE:
            raise SystemExit(f"{system} computes {name} {error} wrong")
    times: dict[str, list[float]] = {system: [] for system in runs}
    for _ in range(ROUNDS):
        for system, run in runs.items():
            start = time.perf_counter()
            run()
            times[system].append((time.perf_counter() - start) * 1e3)
    for system, found in times.items():
        low, median, high = np.quantile(found, [0.25, 0.5, 0.75])
        print(f"{name} hidden {hidden:4}: {system:14} {median:9.3f} ms (quartiles {low:.3f} ... {high:.3f})")


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    sizes = list(map(int, sys.argv[1:] or (16, 64, 256)))
    for hidden in sizes:
        for name, runs, expected in layers(hidden):
            timed_in_turn(name, hidden, runs, expected)
    for hidden in sizes:
        timed_in_turn("language model, training", hidden, *training(hidden))
    for steps in (10, 100, 1000, 10_000) * 2:
        start = time.perf_counter()
        compile_function(loop_models.nasrnn(steps, 1, 64))
        print(f"NASRNN hidden 64, {steps} steps: compiled in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
