"""The step: its tensors and kernels, and how much of it is fast."""

from autotm.model.step.counting import Counts, counted_by, counting, fixed_bytes, storage_of
from autotm.model.step.given import Given
from autotm.model.step.graph import (
    ALIGNMENT_BYTES,
    DEFAULT_IMPLEMENTATION,
    Graph,
    Implementation,
    Kernel,
    OpClass,
    Operand,
    Tensor,
    workspace,
)
from autotm.model.step.launch import Launch
from autotm.model.step.limit import Limit
from autotm.model.step.network_source import NetworkSource
from autotm.model.step.role import Initial, Role
from autotm.model.step.schedule_kind import SCHEDULES_KEY, ScheduleKind, schedules_in
from autotm.model.step.tier import Configuration, Tier, all_fast, configuration
from autotm.model.step.traffic import slow_traffic
from autotm.model.step.training import RATE_SCALE, STEP, Adam, AdamW, Sgd, Training, UpdateRule
from autotm.model.step.vendor_call import Convolution, Product, VendorAlgorithm, VendorCall

__all__ = [
    "ALIGNMENT_BYTES",
    "DEFAULT_IMPLEMENTATION",
    "RATE_SCALE",
    "SCHEDULES_KEY",
    "STEP",
    "Adam",
    "AdamW",
    "Configuration",
    "Convolution",
    "Counts",
    "Given",
    "Graph",
    "Implementation",
    "Initial",
    "Kernel",
    "Launch",
    "Limit",
    "NetworkSource",
    "OpClass",
    "Operand",
    "Product",
    "Role",
    "ScheduleKind",
    "Sgd",
    "Tensor",
    "Tier",
    "Training",
    "UpdateRule",
    "VendorAlgorithm",
    "VendorCall",
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
