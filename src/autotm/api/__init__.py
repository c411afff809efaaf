"""autotm from Python: `autotm.plan(network, limit="4:1").run()`."""

from autotm.api.placement import Placement
from autotm.api.prepare import plan, prepare, sweep
from autotm.api.training_step import TrainingStep

__all__ = ["Placement", "TrainingStep", "plan", "prepare", "sweep"]
