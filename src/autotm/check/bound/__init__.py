"""The lower bound that a plan's certificate proves, and what kernels and copying engines take, without a solver."""

from autotm.check.bound.bound import certified_bound_us
from autotm.check.bound.engine import Engines
from autotm.check.bound.entries import check_tabled, computed, kernel_us

__all__ = ["Engines", "certified_bound_us", "check_tabled", "computed", "kernel_us"]
