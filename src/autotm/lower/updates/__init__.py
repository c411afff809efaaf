"""How training changes parameters: the kernels that a step ends with."""

from autotm.lower.updates.sgd import append_updates

__all__ = ["append_updates"]
