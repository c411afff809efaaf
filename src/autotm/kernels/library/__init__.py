"""Compiled kernels as libraries: linked, loaded, called on a number of threads."""

from autotm.kernels.library.library import Array, BoundKernel, KernelLibrary, aligned_empty
from autotm.kernels.library.link import find_compiler, link
from autotm.kernels.library.processes import cores, in_processes
from autotm.kernels.library.threads import check_cores, pinned

__all__ = [
    "Array",
    "BoundKernel",
    "KernelLibrary",
    "aligned_empty",
    "check_cores",
    "cores",
    "find_compiler",
    "in_processes",
    "link",
    "pinned",
]
