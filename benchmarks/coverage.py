"""Which modules of PyTorch train here, how exactly, and how fast beside PyTorch eager.

    python benchmarks/coverage.py [NAMES ...] [--limit 4:1] [--draws 5] [--times] [--csv FILE]

For each model of `imported_models.py`: the error of what one step of plain descent changes (weights and running
averages), against PyTorch in float64 and over that of PyTorch's own float32 (the worst of its three ways); whether the
step planned for the limit computes the same bits as the plain one; with --times, the plain step's time over PyTorch
eager's, measured in turn (medians). Models that do not train are named with the reason. Needs PyTorch, torchvision,
transformers (requirements/torch.txt).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

import autotm
from autotm.model.errors import AutotmError
from autotm.model.machine import Machine
from imported_models import TrainingCase, build, names, other_data
from torch_steps import QUICK, RATE, change_error, medians_in_turn, single_steps, state_of, torch_step

ALLOWED = 3.0
ROUNDS = 7
DRAWS = 5


@dataclass(frozen=True)
class Row:
    """What was found of one model.

    Attributes:
        error: of what a step changes, in all tensors together, against float64: median over some data.
        ratio: the error over the largest of PyTorch's float32 on the same data: median likewise.
        verified: steps of the planned program that equal the plain one's bit for bit.
        time_ratio: seconds of a plain step over PyTorch eager's.
        fault: why it does not train.
    """

    model: str
    parameters: int = 0
    kernels: int = 0
    error: float | None = None
    ratio: float | None = None
    verified: int = 0
    time_ratio: float | None = None
    seconds: float = 0.0
    fault: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it trains as exactly as PyTorch, and as planned."""
        return not self.fault and self.ratio is not None and self.ratio <= ALLOWED and self.verified > 0

    def __str__(self) -> str:
        if self.fault:
            return f"{self.model:24} {self.fault}"
        times = f"{self.time_ratio:10.2f}" if self.time_ratio is not None else " " * 10
        return (
            f"{self.model:24} {self.parameters / 1e6:8.1f} {self.kernels:8d} {self.error:10.1e} {self.ratio:8.2f} "
            f"{self.verified:8d} {times} {self.seconds:8.1f}{'' if self.is_good else '  NOT GOOD'}"
        )


def measure(
    name: str, limit: str, results: Path, *, times: bool, draws: int = DRAWS, machine: str | Machine = "laptop"
) -> Row:
    """Everything about one model."""
    begun = time.perf_counter()
    case = build(name)
    count = sum(parameter.numel() for parameter in case.module.parameters())
    try:
        step = autotm.prepare(
            case.module, case.inputs, loss=case.loss, targets=case.targets,
            training=autotm.Training(autotm.Sgd(RATE)), results=results, profile=QUICK, machine=machine,
        )  # fmt: skip
        placed = step.plan(limit)
        record = placed.run(min_seconds=0.0, patience_s=1.0, verify_steps=2)
        error, ratio = errors(case, placed, draws)
    except AutotmError as fault:
        return Row(name, count, fault=str(fault), seconds=time.perf_counter() - begun)
    ours = time_ratio(case, step) if times else None
    seconds = time.perf_counter() - begun
    return Row(name, count, len(step.graph.kernels), error, ratio, record.verified_steps, ours, seconds)


def errors(case: TrainingCase, placed: autotm.Placement, draws: int) -> tuple[float, float]:
    """Error of what a step changes, and the same over the largest of PyTorch's float32: medians over some data."""
    before, pairs = state_of(case.module), []
    for seed in range(draws):
        drawn = other_data(case, seed)
        exact = torch_step(drawn, torch.float64).state
        theirs = max(change_error(before, single.state, exact) for single in single_steps(drawn))
        named = drawn.inputs if isinstance(drawn.inputs, Mapping) else {}
        tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
        placed.step(*(() if named else drawn.inputs), *drawn.targets, **tensors)
        state = {name: value.numpy() for name, value in placed.state_dict().items() if name in before}
        placed.close()
        ours = change_error(before, state, exact)
        pairs.append((ours, ours / theirs))
    error, ratio = (statistics.median(values) for values in zip(*pairs, strict=True))
    return error, ratio


def time_ratio(case: TrainingCase, step: autotm.TrainingStep) -> float:
    """Median seconds of a plain step over those of PyTorch eager, in turn."""
    plain = step.plan("0:1", "all-fast")
    module = case.module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def eager() -> None:
        optimizer.zero_grad()
        output = module(**case.inputs) if isinstance(case.inputs, Mapping) else module(*case.inputs)
        case.loss(output, *case.targets).backward()
        optimizer.step()

    torch.set_num_threads(step.context.machine.threads)
    ours, theirs = medians_in_turn((plain.step, eager), ROUNDS)
    plain.close()
    return ours / theirs


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="models (default: all)")
    parser.add_argument("--limit", default="4:1", help="of the planned step")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of data that errors are compared on")
    parser.add_argument("--times", action="store_true", help="time the plain step beside PyTorch eager")
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    heads = ("M params", "kernels", "error", "ratio", "verified", "time ratio", "s")
    print(f"{'model':24}", *(f"{head:>{width}}" for head, width in zip(heads, (8, 8, 10, 8, 8, 10, 8), strict=True)))
    rows = []
    with tempfile.TemporaryDirectory(prefix="autotm-coverage-") as results:
        for name in options.names or names():
            rows.append(measure(name, options.limit, Path(results), times=options.times, draws=options.draws))
            print(rows[-1], flush=True)
    good = sum(row.is_good for row in rows)
    print(f"{good} of {len(rows)} train: errors at most {ALLOWED:g} times PyTorch's, planned steps equal to plain ones")
    ratios = [row.time_ratio for row in rows if row.time_ratio is not None]
    if ratios:
        mean, worst = statistics.geometric_mean(ratios), max(ratios)
        print(f"time over PyTorch eager's: {mean:.2f} in geometric mean, {worst:.2f} at most")
    if options.csv:
        with options.csv.open("w", newline="") as stream:
            table = csv.DictWriter(stream, [field.name for field in fields(Row)])
            table.writeheader()
            table.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
