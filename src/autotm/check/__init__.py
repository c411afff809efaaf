"""Tells whether plans and programs are legal; shares no code with what makes them."""

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan, kernel_times_us, proven_bound_us
from autotm.check.program import check_program

__all__ = ["Fault", "FaultError", "check_plan", "check_program", "kernel_times_us", "proven_bound_us"]
