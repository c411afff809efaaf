"""The optimizers that figures and headline numbers single out."""

from autotm.model.plan import MANAGED_MEMORY, RUN_RIVALS

MOVER, FIRST_TOUCH, CACHED, SPILLED = "synchronous", "numa", "memory-mode", "linux-preferred"
GPU_BASELINE = MANAGED_MEMORY
"""What figure 12 compares with."""
GPU_RIVALS = (*RUN_RIVALS, "recompute")
"""What others do on a GPU where a step exceeds its memory; `solve.rivals` simulates them all."""
