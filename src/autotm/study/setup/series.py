"""The optimizers that figures and headline numbers single out."""

from autotm.model.plan import MANAGED_MEMORY, RUN_RIVALS, SAVE_ON_CPU

MOVER, FIRST_TOUCH, CACHED, SPILLED = "synchronous", "numa", "memory-mode", "linux-preferred"
GPU_BASELINE = MANAGED_MEMORY
"""What figure 12 compares with."""
GPU_RIVALS = (*RUN_RIVALS, "recompute", SAVE_ON_CPU)
"""What others do on a GPU where a step exceeds its memory; `solve.rivals` simulates them all."""
