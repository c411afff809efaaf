"""The optimizers that figures and headline numbers single out."""

MOVER, FIRST_TOUCH, CACHED = "synchronous", "numa", "memory-mode"
