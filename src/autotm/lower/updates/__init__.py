"""How training changes parameters: the kernels that a step ends with."""

from autotm.lower.updates.append import Updates, append_updates

__all__ = ["Updates", "append_updates"]
