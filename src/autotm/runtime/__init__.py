"""Running a program: filling its arguments, executing, verifying, timing and recording it."""

from autotm.runtime.options import RunOptions
from autotm.runtime.run import run

__all__ = ["RunOptions", "run"]
