"""Decisions on which operators share a kernel, as a file has them: requested ones, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Decision(StrEnum):
    """What becomes of an operator at a place where its value is read."""

    APPLY = "apply"
    INLINE = "inline"
    RECOMPUTE = "recompute"


class Reason(StrEnum):
    """Why another decision is executed than the requested one."""

    CIRCLE = "kernels would read one another's values"
    INSIDE = "the same kernel computes it for another reader"
    COPIED = "what a copy reads is copied, too"
    COMPARED = "its value is compared for equality, so it is computed once"
    UNSCHEDULED = "no schedule computes these operators in one kernel"
    HIDDEN = "its reader is not computed there"


@dataclass(frozen=True)
class Changed:
    """A decision that is not executed as requested.

    Attributes:
        executed: instead; None where there is nothing to decide.
        reason: why.
    """

    executed: Decision | None
    reason: Reason


@dataclass(frozen=True)
class FusionDecisions:
    """Decisions for a step, by path: the root of a tree, then operators that each is read by the one before.

    Attributes:
        network, scale: whose step it is.
        is_training: whether the step is the whole of training, or inference.
        identity: hash of the step's operators, their shapes, and which reads what.
        requested: decisions that are asked for; operators at other paths are applied.
        changed: those that are not executed as requested.
        executed: the decisions that ask for just what is executed.
    """

    network: str
    scale: str
    is_training: bool
    identity: str
    requested: Mapping[str, Decision]
    changed: Mapping[str, Changed] = field(default_factory=dict)
    executed: Mapping[str, Decision] = field(default_factory=dict)
