"""Schedules of what works on rows or channels: normalizations, softmax, biases."""

from autotm.kernels.schedules.rows import bias
from autotm.kernels.schedules.rows.batch_norm_code import schedule_gradient_sums, schedule_statistics
from autotm.kernels.schedules.rows.bias import schedule_bias_gradient
from autotm.kernels.schedules.rows.row_norm import schedule_layer_norm, schedule_layer_norm_gradient
from autotm.kernels.schedules.rows.row_softmax import schedule_log_softmax_gradient, schedule_softmax

__all__ = [
    "bias",
    "schedule_bias_gradient",
    "schedule_gradient_sums",
    "schedule_layer_norm",
    "schedule_layer_norm_gradient",
    "schedule_log_softmax_gradient",
    "schedule_softmax",
    "schedule_statistics",
]
