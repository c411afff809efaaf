"""What others do on a GPU where a step exceeds its memory, as plans that run; figure 12 compares with them."""
