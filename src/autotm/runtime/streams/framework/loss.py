"""By how much losses of one network may differ that different programs compute in float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from autotm.memory.torch import Device
from autotm.runtime.streams.framework.step import Arrays
from autotm.zoo import Network
from autotm.zoo.twin import TorchNetwork

_DRAWS = 4
_ALLOWED = 3.0
_FLOOR = 1e-4
_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class ExpectedLoss:
    """Of the first step.

    Attributes:
        exact: in float64.
        tolerance: the most that two losses in float32 may differ by.
    """

    exact: float
    tolerance: float


def expected_loss(network: Network, arrays: Arrays, device: Device, seed: int) -> ExpectedLoss:
    """Forward passes by PyTorch in float64, and, several times, in float32.

    Bits depend on the order of sums, and on a convolution's algorithm. What roundings make of a loss depends on the
    network: batch norm over few values, or the logarithm of a score near zero, amplify them a millionfold. So the scale
    is the largest error of PyTorch's own float32 in a few passes whose inputs are off by a rounding (2^-24, drawn); two
    programs may be three of it apart, and 1e-4 of the loss in any case, since algorithms that ours and cuDNN choose may
    lose digits of float32 (Winograd's do) that PyTorch's own passes all have.
    """
    exact = _loss(network, arrays, torch.float64, device)
    draw = np.random.default_rng(seed)
    errors = []
    for _ in range(_DRAWS):
        off = {name: _rounded(arrays[name], draw) if name in network.inputs else arrays[name] for name in arrays}
        errors.append(abs(_loss(network, off, torch.float32, device) - exact))
    return ExpectedLoss(exact, _ALLOWED * max(errors) + _FLOOR * abs(exact))


def _loss(network: Network, arrays: Arrays, dtype: torch.dtype, device: Device) -> float:
    with torch.no_grad():
        return float(TorchNetwork(network, arrays, dtype, device=device.torch)())


def _rounded(values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    if values.dtype.kind != "f":
        return values
    return (values * (1 + _ROUNDING * draw.uniform(-2, 2, values.shape))).astype(values.dtype)
