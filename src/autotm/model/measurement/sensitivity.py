"""What resampled kernel times did to the plans for one limit (`sensitivity/LIMIT.json`)."""

from __future__ import annotations

from dataclasses import dataclass


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
        """The plan as it is over the all-fast step."""
        return self.present_us / self.all_fast_us

    @property
    def regret(self) -> float:
        """What the plan loses to the better of itself and the plan made for these times, as a share of that one."""
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
    limit: str
    recorded: tuple[Draw, ...]
    draws: tuple[Draw, ...]

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Whose plans were compared, in order."""
        return tuple(row.optimizer for row in self.recorded)

    def of(self, optimizer: str) -> tuple[Draw, ...]:
        """The drawn rows of one optimizer, by number."""
        return tuple(row for row in self.draws if row.optimizer == optimizer)
