"""Pricing kernels: every distinct kernel in every configuration that a plan may choose."""

from autotm.profile.extrapolate import extrapolate

__all__ = ["extrapolate"]
