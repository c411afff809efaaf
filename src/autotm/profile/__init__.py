"""Pricing kernels: every distinct kernel in every configuration that a plan may choose."""

from autotm.profile.options import ProfileOptions
from autotm.profile.profiler import profile_kernels
from autotm.profile.store import KernelStore

__all__ = ["KernelStore", "ProfileOptions", "profile_kernels"]
