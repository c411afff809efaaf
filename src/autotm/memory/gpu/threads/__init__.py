"""A device made of threads and host memory: the order of streams and events tested with real concurrency."""

from autotm.memory.gpu.threads.device import ThreadDevice
from autotm.memory.gpu.threads.order import Delays, Interleaving, Order, Starving
from autotm.memory.gpu.threads.races import RaceError

__all__ = ["Delays", "Interleaving", "Order", "RaceError", "Starving", "ThreadDevice"]
