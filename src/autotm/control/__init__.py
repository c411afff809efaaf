"""Functions with loops, branches and recursion, compiled with their control flow: `compile_function`."""

from autotm.control.function import ControlFunction, compile_function
from autotm.control.reader import Limits
from autotm.control.rewrites import NO_REWRITES, Rewrites

__all__ = ["NO_REWRITES", "ControlFunction", "Limits", "Rewrites", "compile_function"]
