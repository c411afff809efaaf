"""What optimizers are made of."""

from autotm.solve.bases.base import Optimizer, Placement
from autotm.solve.bases.first_fit import first_fit
from autotm.solve.bases.heap import Heap
from autotm.solve.bases.integer_program import IntegerProgram
from autotm.solve.bases.paged import PagedPlacement, settled
from autotm.solve.bases.recheck import cached_us, plan_us
from autotm.solve.bases.rival import Rival, Ruled
from autotm.solve.bases.single_tier import SingleTier

__all__ = [
    "Heap",
    "IntegerProgram",
    "Optimizer",
    "PagedPlacement",
    "Placement",
    "Rival",
    "Ruled",
    "SingleTier",
    "cached_us",
    "first_fit",
    "plan_us",
    "settled",
]
