"""Gradients of a convolution's weights."""

from autotm.kernels.schedules.contraction.weights.blocked import Weights, contract_weights
from autotm.kernels.schedules.contraction.weights.packed import Windows, contract_windows, gathering_pays

__all__ = ["Weights", "Windows", "contract_weights", "contract_windows", "gathering_pays"]
