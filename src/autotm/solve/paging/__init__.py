"""What Linux does with the pages of a plain step, simulated: where they go when first touched, how they move later."""

from autotm.solve.paging.balancing import Balancing, balanced
from autotm.solve.paging.first_touch import interleave_weights, interleaved, preferred, touch_order
from autotm.solve.paging.pages import Fast, PageMap, Touch, touch
from autotm.solve.paging.rules import BALANCING, BalancingRules
from autotm.solve.paging.times import StepCosts

__all__ = [
    "BALANCING",
    "Balancing",
    "BalancingRules",
    "Fast",
    "PageMap",
    "StepCosts",
    "Touch",
    "balanced",
    "interleave_weights",
    "interleaved",
    "preferred",
    "touch",
    "touch_order",
]
