"""Time recurrent layers, and LSTM and NASRNN at batch 1, as one compiled function and in PyTorch; print medians.

    .venv-torch/bin/python benchmarks/control_flow.py [HIDDEN ...]

All run on one thread, alternately, after they were found equal. First are PyTorch's own layers, and the training step
of a language model, through `autotm.compile`. Of LSTM and NASRNN, `torch.compile` gets one step, without control flow:
a loop of 1000 steps is unrolled by it, for minutes. The last table is how long a loop takes to compile by its steps.
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
import recurrent_models as models
from autotm.control import compile_function
from autotm.kernels.library import aligned_empty

ROUNDS = 15
STEPS = {"LSTM": 64, "NASRNN": 1000}
CELLS = 10
WORDS = 1000
TOLERANCE = 1e-4
"""Of float32 after 1000 steps."""


def lstm_step(row: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """One step of all cells; weights are packed, (hidden, 4 hidden) and a bias each."""
    after = []
    for cell in range(len(states) // 2):
        c, h = states[2 * cell : 2 * cell + 2]
        own, own_hidden, bias = weights[3 * cell : 3 * cell + 3]
        enter, keep, new, leave = torch.addmm(torch.addmm(bias, row, own), h, own_hidden).chunk(4, dim=1)
        c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
        row = leave.sigmoid() * c.tanh()
        after += [c, row]
    return after


def nasrnn_step(row: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """One step; weights are packed, (hidden, 8 hidden)."""
    c, m = states
    g = torch.addmm(row @ weights[0], m, weights[1]).chunk(8, dim=1)
    first, second = (g[0].sigmoid() * g[1].relu()).tanh(), (g[2].sigmoid() + g[3].relu()).tanh()
    third, fourth = (g[4].tanh() * g[5].sigmoid()).tanh(), (g[6].tanh() + g[7].sigmoid()).sigmoid()
    c = (first + c).tanh() * second
    return [c, (c * (third + fourth).tanh()).tanh()]


def packed(weights: np.ndarray) -> torch.Tensor:
    """Return weights (n, hidden, hidden) as (hidden, n hidden)."""
    return torch.from_numpy(np.concatenate(weights, axis=1))


def whole_lstm(x: torch.Tensor, weights: list[torch.Tensor]) -> Callable[[], object]:
    """Return a run of PyTorch's own layer, which goes through all steps of one cell before the next cell."""
    module = torch.nn.LSTM(x.shape[2], x.shape[2], num_layers=CELLS)
    for cell in range(CELLS):
        own, own_hidden, bias = weights[3 * cell : 3 * cell + 3]
        for name, value in (
            ("weight_ih", own.T),
            ("weight_hh", own_hidden.T),
            ("bias_ih", bias),
            ("bias_hh", 0 * bias),
        ):
            getattr(module, f"{name}_l{cell}").copy_(value)
    return lambda: module(x)[0][-1]


def systems(model: str, hidden: int) -> tuple[dict[str, Callable[[], object]], np.ndarray]:
    """Return what is timed, by name, and what each must return."""
    steps = STEPS[model]
    if model == "LSTM":
        arguments = models.lstm_arguments(steps, CELLS, 1, hidden)
        module, expected, step = models.lstm(steps, CELLS, 1, hidden), models.lstm_in_numpy(*arguments), lstm_step
        weights = [
            packed(each) if each.ndim == 3 else torch.from_numpy(each.reshape(2, -1).sum(axis=0))  # noqa: PLR2004
            for each in arguments[1:]
        ]
        states, last = [torch.zeros(1, hidden)] * (2 * CELLS), lambda states: states[-1]
    else:
        arguments = models.nasrnn_arguments(steps, 1, hidden)
        module, expected, step = models.nasrnn(steps, 1, hidden), models.nasrnn_in_numpy(*arguments), nasrnn_step
        weights = [packed(each) for each in arguments[1:]]
        states, last = [torch.zeros(1, hidden)] * 2, lambda states: states[0] + states[1]
    torch.compiler.reset()  # Or sizes seen before would make it compile for any size.
    rows = list(torch.from_numpy(arguments[0]))

    def looped(step: Callable[..., list[torch.Tensor]]) -> Callable[[], object]:
        def run() -> torch.Tensor:
            now = states
            for row in rows:
                now = step(row, now, weights)
            return last(now)

        return run

    function = compile_function(module)
    placed = [aligned_empty(each.shape, str(each.dtype)) for each in arguments]
    for own, argument in zip(placed, arguments, strict=True):
        own[...] = argument
    timed = {
        "tvm-fused": lambda: function(*placed),
        "torch": looped(step),
        "torch.compile": looped(torch.compile(step, dynamic=False)),
    }
    if model == "LSTM":
        timed["torch nn.LSTM"] = whole_lstm(torch.from_numpy(arguments[0]), weights)
    return timed, expected


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
    for model in STEPS:
        for hidden in sizes:
            timed_in_turn(model, hidden, *systems(model, hidden))
    for steps in (10, 100, 1000, 10_000) * 2:
        start = time.perf_counter()
        compile_function(models.nasrnn(steps, 1, 64))
        print(f"NASRNN hidden 64, {steps} steps: compiled in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
