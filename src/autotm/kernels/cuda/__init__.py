"""Kernels for NVIDIA's GPUs: launches as data, their functions as CUDA C++, compiled by nvcc."""
