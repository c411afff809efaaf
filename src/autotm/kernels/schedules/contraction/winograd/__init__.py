"""Convolutions of three by three by Winograd's transform, and their weights' gradients."""

from autotm.kernels.schedules.contraction.winograd.images import winograd_data_gradient, winograd_forward, winograd_pays
from autotm.kernels.schedules.contraction.winograd.weights import winograd_weight_gradient, winograd_weights_pay

__all__ = [
    "winograd_data_gradient",
    "winograd_forward",
    "winograd_pays",
    "winograd_weight_gradient",
    "winograd_weights_pay",
]
