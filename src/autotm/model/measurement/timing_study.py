"""What timing the kernels of one step in several ways came to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotm.model.step import Configuration


class Way(StrEnum):
    """How a kernel's time in a configuration was found.

    `SINGLE`: in a step in which this kernel's tensors alone are configured, one configuration a step; `AGAIN`: the
    same once more, which shows what such a measurement is worth. `TOGETHER`: in a step in which many kernels that
    share no tensor are configured at once. `ISOLATED`: the kernel alone, in every configuration. `ADDITIVE`: the
    kernel alone, all fast and with each tensor alone in slow memory; other configurations are sums.
    """

    SINGLE = "single"
    AGAIN = "single again"
    TOGETHER = "together"
    ISOLATED = "isolated"
    ADDITIVE = "additive"


@dataclass(frozen=True)
class ConfigurationTime:
    """One kernel in one configuration, timed or predicted in one way.

    Attributes:
        way: how.
        kernel: name of the call in the step that stands for all calls of the same code.
        op: what it computes.
        configuration: a letter for each slot, D fast, P slow.
        slow_operands: tensors of it in slow memory.
        time_us: median of `repeats` runs; of a sum, which has no repeats, the sum of medians.
        repeats: number of runs; 0 for a sum.
        lower_quartile_us, upper_quartile_us: of those runs; None for a sum.
    """

    way: Way
    kernel: str
    op: str
    configuration: Configuration
    slow_operands: int
    time_us: float
    repeats: int
    lower_quartile_us: float | None = None
    upper_quartile_us: float | None = None


@dataclass(frozen=True)
class WayCost:
    """What a way took.

    Attributes:
        way: which.
        seconds: wall time of all of it, kernels being compiled.
        runs: steps, or, of kernels alone, configurations timed.
    """

    way: Way
    seconds: float
    runs: int


@dataclass(frozen=True)
class TimingStudy:
    """One step's kernels, timed in every way on one machine; every way gives the same configurations.

    Attributes:
        network, scale, batch: what ran.
        machine, threads: where.
        tier_reality: `real`, `emulated` or `modelled` slow memory, or ordinary memory that is its `stand-in`.
        seed: of weights and data.
        repeats: how often a step was run for each configuration or set of them.
        costs: what each way took.
        times: what each way found.
    """

    network: str
    scale: str
    batch: int
    machine: str
    threads: int
    tier_reality: str
    seed: int
    repeats: int
    costs: tuple[WayCost, ...]
    times: tuple[ConfigurationTime, ...]
