"""Times of kernels, in every configuration that a plan may choose, and of the machine's copies."""
