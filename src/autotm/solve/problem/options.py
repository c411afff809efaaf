"""What a user may ask of a solve beside the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotm.model.files import BadInputError
from autotm.model.step import Tier


@dataclass(frozen=True)
class SolveOptions:
    """Options of one solve.

    Attributes:
        gap: accepted relative distance between objective and proven bound; the search stops there.
        time_limit_s: wall time for the solver; afterwards the best legal plan found is returned with its true gap.
        sweep_s: wall time for all limits of a sweep together, solved and packed, beside that of each; what is needed
            for a legal plan of each limit is done in any case.
        threads: threads of the solver.
        seed: the solver's random seed.
        additive_tolerance: a kernel that was measured in full is read additively where that misses no configuration by
            more than this share of its all-fast time; slow operands of its implementations may differ as much.
        fast_operands_only: kernels cannot use slow operands (GPUs): tensors are slow between kernels only.
        fixed: movable tensors that must spend their whole life in one tier.
    """

    gap: float = 1e-3
    time_limit_s: float = 60.0
    sweep_s: float = math.inf
    threads: int = 1
    seed: int = 0
    additive_tolerance: float = 0.02
    fast_operands_only: bool = False
    fixed: Mapping[str, Tier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.gap < 1:
            raise BadInputError(f"solve option gap: {self.gap} is not in [0, 1)")
        if not (self.time_limit_s > 0 and math.isfinite(self.time_limit_s)):
            raise BadInputError(f"solve option time_limit_s: {self.time_limit_s} is not a positive number of seconds")
        if not self.sweep_s > 0:
            raise BadInputError(f"solve option sweep_s: {self.sweep_s} is not a positive number of seconds")
        if not (self.additive_tolerance >= 0 and math.isfinite(self.additive_tolerance)):
            raise BadInputError(f"solve option additive_tolerance: {self.additive_tolerance} is not at least 0")
        if self.threads < 1:
            raise BadInputError(f"solve option threads: {self.threads} is not at least 1")
        if not 0 <= self.seed < 2**31:
            raise BadInputError(f"solve option seed: {self.seed} is not in [0, 2^31)")
