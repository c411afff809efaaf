"""Whether plans differ by more than the noise of the kernel times that they were made from."""

from autotm.study.noise.sensitivity import describe, measure_sensitivity

__all__ = ["describe", "measure_sensitivity"]
