"""NVIDIA's libraries: which algorithms they have for a contraction, and calls of these; needs no compiler."""

from autotm.kernels.vendor.cublas import product_layouts
from autotm.kernels.vendor.cudnn import operands_of
from autotm.kernels.vendor.loading import VendorError, VendorMissingError
from autotm.kernels.vendor.vendors import VENDORS, Vendor, Vendors, operand_bytes

__all__ = [
    "VENDORS",
    "Vendor",
    "VendorError",
    "VendorMissingError",
    "Vendors",
    "operand_bytes",
    "operands_of",
    "product_layouts",
]
