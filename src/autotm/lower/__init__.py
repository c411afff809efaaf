"""Network -> training step -> fused kernels -> graph and library."""

from autotm.lower.convolution import lower_convolution
from autotm.lower.distinct import DistinctKernel, distinct_kernels
from autotm.lower.lower import ScheduledStep, lower_network, scheduled_step

__all__ = [
    "DistinctKernel",
    "ScheduledStep",
    "distinct_kernels",
    "lower_convolution",
    "lower_network",
    "scheduled_step",
]
