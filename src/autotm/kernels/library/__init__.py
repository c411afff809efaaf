"""Compiled kernels as libraries: linked, loaded, called on a number of threads."""

from autotm.kernels.library.fatbin_library import FatbinLibrary, Launches
from autotm.kernels.library.library import Array, BoundKernel, KernelLibrary, aligned_empty
from autotm.kernels.library.link import link
from autotm.kernels.library.processes import cores, in_processes
from autotm.kernels.library.threads import check_cores, pinned
from autotm.kernels.library.tvm_runtime import launching_on
from autotm.kernels.library.yardsticks import (
    MULTIPLY_ADDS,
    Yardstick,
    Yardsticks,
    co_runners,
    contraction_flop_per_s,
    multiply_add_flop_per_s,
)

__all__ = [
    "MULTIPLY_ADDS",
    "Array",
    "BoundKernel",
    "FatbinLibrary",
    "KernelLibrary",
    "Launches",
    "Yardstick",
    "Yardsticks",
    "aligned_empty",
    "check_cores",
    "co_runners",
    "contraction_flop_per_s",
    "cores",
    "in_processes",
    "launching_on",
    "link",
    "multiply_add_flop_per_s",
    "pinned",
]
