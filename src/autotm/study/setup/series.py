"""The optimizers that figures and headline numbers single out."""

MOVER, FIRST_TOUCH, CACHED, SPILLED = "synchronous", "numa", "memory-mode", "linux-preferred"
GPU_BASELINE = "managed-memory"
"""What figure 12 compares with."""
GPU_RIVALS = (GPU_BASELINE, "lru-paging", "swap-all", "recompute")
"""What others do on a GPU where a step exceeds its memory; simulated by `solve.rivals`."""
