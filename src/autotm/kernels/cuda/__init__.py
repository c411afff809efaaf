"""Kernels for NVIDIA's GPUs: launches as data, their functions as CUDA C++, compiled by nvcc."""

from autotm.kernels.cuda.cublas import ProductAlgorithm, product_algorithms, product_layouts
from autotm.kernels.cuda.cudnn import Algorithm, Convolution, turned_weights
from autotm.kernels.cuda.cudnn import algorithms as cudnn_algorithms
from autotm.kernels.cuda.device import DEVICES, CudaDevice, device_like, device_named
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.nvcc import ARCHITECTURES, Fatbin, Usage, fatbin, find_nvcc, usage_in
from autotm.kernels.cuda.source import CudaKernel, translation_unit, workspace_bytes

__all__ = [
    "ARCHITECTURES",
    "DEVICES",
    "Algorithm",
    "Convolution",
    "CudaDevice",
    "CudaKernel",
    "Fatbin",
    "ProductAlgorithm",
    "Usage",
    "cuda_kernel",
    "cudnn_algorithms",
    "device_like",
    "device_named",
    "fatbin",
    "find_nvcc",
    "product_algorithms",
    "product_layouts",
    "translation_unit",
    "turned_weights",
    "usage_in",
    "workspace_bytes",
]
