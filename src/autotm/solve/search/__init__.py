"""From a relaxation to a plan and a proof: what is tried, in which order, for how long."""

from autotm.solve.search.near import SOLVER_SHARE, decide_fractional, integral
from autotm.solve.search.rounds import cut, keep_up
from autotm.solve.search.search import Search
from autotm.solve.search.settle import plan_of, settle
from autotm.solve.search.sift import Sifting, can_be_whole, is_large
from autotm.solve.search.tree import Tree

__all__ = [
    "SOLVER_SHARE",
    "Search",
    "Sifting",
    "Tree",
    "can_be_whole",
    "cut",
    "decide_fractional",
    "integral",
    "is_large",
    "keep_up",
    "plan_of",
    "settle",
]
