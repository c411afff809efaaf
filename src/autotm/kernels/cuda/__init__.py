"""Kernels for NVIDIA's GPUs: launches as data, their functions as CUDA C++, compiled by nvcc."""

from autotm.kernels.cuda.device import DEVICES, CudaDevice, device_like, device_named
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.nvcc import ARCHITECTURES, Fatbin, Usage, fatbin, find_nvcc, usage_in
from autotm.kernels.cuda.source import CudaKernel, translation_unit, workspace_bytes
from autotm.kernels.cuda.vendor_kernels import VendorKernel, VendorProblem, turned_weights, vendor_problem

__all__ = [
    "ARCHITECTURES",
    "DEVICES",
    "CudaDevice",
    "CudaKernel",
    "Fatbin",
    "Usage",
    "VendorKernel",
    "VendorProblem",
    "cuda_kernel",
    "device_like",
    "device_named",
    "fatbin",
    "find_nvcc",
    "translation_unit",
    "turned_weights",
    "usage_in",
    "vendor_problem",
    "workspace_bytes",
]
