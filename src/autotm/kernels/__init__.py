"""Kernels of a step: what they compute, how they are scheduled, compiled, kept and called."""
