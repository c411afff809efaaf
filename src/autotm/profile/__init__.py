"""Pricing kernels: every distinct kernel in every configuration that a plan may choose; and the machine's copies."""
