"""Network -> training step -> fused kernels -> graph and library."""

from autotm.lower.convolution import lower_convolution
from autotm.lower.cuda import CudaStep, co_runners_for_gpu, cuda_step, lower_for_gpu
from autotm.lower.distinct import DistinctKernel, distinct_kernels
from autotm.lower.lower import ScheduledStep, lower_network, outlined_step, scheduled_step

__all__ = [
    "CudaStep",
    "DistinctKernel",
    "ScheduledStep",
    "co_runners_for_gpu",
    "cuda_step",
    "distinct_kernels",
    "lower_convolution",
    "lower_for_gpu",
    "lower_network",
    "outlined_step",
    "scheduled_step",
]
