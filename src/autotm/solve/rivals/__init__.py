"""Steps on a GPU simulated on three engines: plans, and what others do where a step exceeds device memory."""

from autotm.solve.rivals.managed import ManagedMemory
from autotm.solve.rivals.of_plan import run_plan
from autotm.solve.rivals.rivals import RIVALS, run_rival
from autotm.solve.rivals.simulated import Simulated

__all__ = ["RIVALS", "ManagedMemory", "Simulated", "run_plan", "run_rival"]
