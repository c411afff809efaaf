"""The step: its tensors and kernels, and how much of it is fast."""

from autotm.model.step.counting import Counts, counted_by, counting, fixed_bytes, storage_of
from autotm.model.step.graph import (
    ALIGNMENT_BYTES,
    DEFAULT_IMPLEMENTATION,
    Graph,
    Implementation,
    Initial,
    Kernel,
    OpClass,
    Operand,
    Role,
    Tensor,
    workspace,
)
from autotm.model.step.limit import Limit
from autotm.model.step.network_source import NetworkSource
from autotm.model.step.schedule_kind import SCHEDULES_KEY, ScheduleKind, schedules_in
from autotm.model.step.tier import Configuration, Tier, all_fast, configuration
from autotm.model.step.traffic import slow_traffic

__all__ = [
    "ALIGNMENT_BYTES",
    "DEFAULT_IMPLEMENTATION",
    "SCHEDULES_KEY",
    "Configuration",
    "Counts",
    "Graph",
    "Implementation",
    "Initial",
    "Kernel",
    "Limit",
    "NetworkSource",
    "OpClass",
    "Operand",
    "Role",
    "ScheduleKind",
    "Tensor",
    "Tier",
    "all_fast",
    "configuration",
    "counted_by",
    "counting",
    "fixed_bytes",
    "schedules_in",
    "slow_traffic",
    "storage_of",
    "workspace",
]
