"""Legal plans, in integers: made from proposals, and improved."""

from autotm.solve.plans.conflicts import Conflicts, Member, holds
from autotm.solve.plans.ejection import eject
from autotm.solve.plans.local_search import refine
from autotm.solve.plans.repair import Repair
from autotm.solve.plans.spill import Spilled, spill

__all__ = ["Conflicts", "Member", "Repair", "Spilled", "eject", "holds", "refine", "spill"]
