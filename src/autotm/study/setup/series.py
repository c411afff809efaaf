"""The optimizers that figures and headline numbers single out."""

from autotm.model.plan import MANAGED_MEMORY

MOVER, FIRST_TOUCH, CACHED, SPILLED = "synchronous", "numa", "memory-mode", "linux-preferred"
GPU_BASELINE = MANAGED_MEMORY
"""What figure 12 compares with."""
