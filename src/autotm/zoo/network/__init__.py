"""What a network is, and how one is written."""

from autotm.zoo.network.builder import NetworkBuilder
from autotm.zoo.network.gradients import gradient_by, gradient_of, is_gradient
from autotm.zoo.network.network import Fill, Network
from autotm.zoo.network.origin import Check, NotComputedError, Origin, Reference, Way, unchecked
from autotm.zoo.network.values import with_values_stored

__all__ = [
    "Check",
    "Fill",
    "Network",
    "NetworkBuilder",
    "NotComputedError",
    "Origin",
    "Reference",
    "Way",
    "gradient_by",
    "gradient_of",
    "is_gradient",
    "unchecked",
    "with_values_stored",
]
