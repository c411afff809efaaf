"""What a tensor is to the step, and what an argument holds before the first one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    """What a tensor is to the step.

    A state is read and replaced, as a parameter is, but training does not differentiate by it: running averages,
    counters, what an update rule keeps.
    """

    PARAMETER = "parameter"
    STATE = "state"
    INPUT = "input"
    CONSTANT = "constant"
    INTERMEDIATE = "intermediate"
    WORKSPACE = "workspace"
    RESULT = "result"

    @property
    def is_movable(self) -> bool:
        """Whether a plan always decides where the tensor lives; the other roles are the step's arguments."""
        return self in {Role.INTERMEDIATE, Role.WORKSPACE}


@dataclass(frozen=True, slots=True)
class Initial:
    """How an argument is filled before the first step, from the run's seed and the tensor's name.

    Attributes:
        kind: `normal` draws N(0, scale^2), `uniform` draws [0, scale), `integers` draws whole numbers in [0, scale)
            (indices into a table, say), `one_hot` puts a one at a random column of each row. Not drawn: `zeros`,
            `ones`; `sinusoids`, the positions of Vaswani et al. (arXiv:1706.03762, 3.5), a row each; `future`, which
            has `scale` above the diagonal, zero elsewhere.
        scale: as `kind` says; the others need none.
    """

    kind: Literal["zeros", "ones", "normal", "uniform", "one_hot", "integers", "sinusoids", "future"]
    scale: float = 1.0
