"""Results of studies of kernel times.

Ways of timing compared, and plans solved anew with resampled times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotm.model.graph import Configuration
from autotm.model.limit import Limit


class TimingMethod(StrEnum):
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
    """One kernel in one configuration, timed or predicted by one method.

    Attributes:
        way: method of timing, or of prediction.
        kernel: name of the call in the step that stands for all calls of the same code.
        op: operation of the kernel.
        configuration: a letter for each slot, D fast, P slow.
        slow_operands: tensors of it in slow memory.
        time_us: median of `repeats` runs; of a sum, which has no repeats, the sum of medians.
        repeats: number of runs; 0 for a sum.
        lower_quartile_us, upper_quartile_us: of those runs; None for a sum.
    """

    way: TimingMethod
    kernel: str
    op: str
    configuration: Configuration
    slow_operands: int
    time_us: float
    repeats: int
    lower_quartile_us: float | None = None
    upper_quartile_us: float | None = None


@dataclass(frozen=True)
class TimingMethodCost:
    """Cost of timing the kernels by one method.

    Attributes:
        way: method of timing.
        seconds: wall time of all of it, kernels being compiled.
        runs: steps, or, of kernels alone, configurations timed.
    """

    way: TimingMethod
    seconds: float
    runs: int


@dataclass(frozen=True)
class TimingStudy:
    """One step's kernels, timed by every method on one machine; all methods time the same configurations.

    Attributes:
        network, scale, batch: what ran.
        machine, threads: where.
        tier_reality: `real`, `emulated` or `modelled` slow memory, or ordinary memory that is its `stand-in`.
        seed: of weights and data.
        repeats: how often a step was run for each configuration or set of them.
        costs: the cost of each method.
        times: the times by each method.
    """

    network: str
    scale: str
    batch: int
    machine: str
    threads: int
    tier_reality: str
    seed: int
    repeats: int
    costs: tuple[TimingMethodCost, ...]
    times: tuple[ConfigurationTime, ...]


@dataclass(frozen=True, slots=True)
class Draw:
    """One optimizer's plan under one draw of kernel times; all times are predicted.

    Attributes:
        number: of the draw; the optimizers of one number share the drawn times.
        optimizer: whose plan.
        all_fast_us: the step with everything fast.
        present_us: the step by the plan as it is.
        resolved_us: the step by a plan that was made for the drawn times.
    """

    number: int
    optimizer: str
    all_fast_us: float
    present_us: float
    resolved_us: float

    def __post_init__(self) -> None:
        if min(self.all_fast_us, self.present_us, self.resolved_us) <= 0:
            raise ValueError(f"draw {self.number} of '{self.optimizer}': times must be positive, got {self}")

    @property
    def slowdown(self) -> float:
        """Time of the step by the plan as it is, divided by the time of the all-fast step."""
        return self.present_us / self.all_fast_us

    @property
    def regret(self) -> float:
        """Time lost to the better of this plan and the one made for the drawn times, as a share of the better time."""
        return self.present_us / min(self.present_us, self.resolved_us) - 1.0


@dataclass(frozen=True)
class Sensitivity:
    """A tidy table: a row for each draw and optimizer.

    Attributes:
        graph_hash: hash of the graph that the plans are for.
        limit: their limit, as asked.
        recorded: a row for each optimizer under the recorded medians.
        draws: the rows under drawn times, by number, then in the order of `recorded`.
    """

    graph_hash: str
    limit: Limit
    recorded: tuple[Draw, ...]
    draws: tuple[Draw, ...]

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Names of the optimizers whose plans were compared, in order."""
        return tuple(row.optimizer for row in self.recorded)

    def of(self, optimizer: str) -> tuple[Draw, ...]:
        """Return the drawn rows of one optimizer, by number."""
        return tuple(row for row in self.draws if row.optimizer == optimizer)
