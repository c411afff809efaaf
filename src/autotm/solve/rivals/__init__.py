"""Steps on a GPU simulated on three engines: plans, and what others do where a step exceeds device memory."""

from autotm.solve.rivals.lru import paging
from autotm.solve.rivals.managed import ManagedMemory
from autotm.solve.rivals.of_plan import run_plan
from autotm.solve.rivals.recompute import Segments, leanest_of, segmentations
from autotm.solve.rivals.rivals import RIVALS, run_rival
from autotm.solve.rivals.saved import saved
from autotm.solve.rivals.simulated import Simulated, fastest
from autotm.solve.rivals.swap import swapping

__all__ = [
    "RIVALS",
    "ManagedMemory",
    "Segments",
    "Simulated",
    "fastest",
    "leanest_of",
    "paging",
    "run_plan",
    "run_rival",
    "saved",
    "segmentations",
    "swapping",
]
