"""An array at an address in device memory, for libraries that speak DLPack (TVM, PyTorch) or CUDA's array interface.

DLPack hands over a structure in memory of the producer's, with a function that frees it. Its layout is that of version
0.8 (`dlpack.h`), which all consumers read.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from autotm.model.files import AutotmError

CPU, CUDA = 1, 2
"""Kinds of device: `kDLCPU`, `kDLCUDA`."""
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""`DLDataTypeCode` by NumPy's kind of type."""
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_handed_over: dict[int, tuple[Any, ...]] = {}
"""By address of the structure, what must live until its consumer lets go."""


@dataclass(frozen=True)
class DeviceArray:
    """`shape` elements at an address, in C order, not held by anyone: its pool must outlive it.

    Attributes:
        address: of the first element.
        shape: its axes.
        dtype: by NumPy.
        device: kind and number of the device that has the memory.
        owner: kept alive with the array and with what is made from it.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: tuple[int, int]
    owner: Any = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,  # Whoever uses it keeps to the program's order of streams.
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_wishes: Any) -> Any:
        """A capsule named `dltensor`. Wishes of the consumer are not needed: nothing is copied, no stream awaited.

        Raises:
            AutotmError: DLPack has no code for the type.
        """
        code = _CODES.get(self.dtype.kind)
        if code is None:
            raise AutotmError(f"array of {self.dtype}: DLPack has no such type")
        axes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        managed = _Managed()
        managed.tensor = _Tensor(
            self.address, *self.device, len(self.shape), code, 8 * self.dtype.itemsize, 1, axes, None, 0
        )
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        place = ctypes.addressof(managed)
        _handed_over[place] = managed, axes, self.owner
        return _capsule(place, _NAME, ctypes.cast(_end, ctypes.c_void_p))


@_Deleter
def _delete(place: int) -> None:
    _handed_over.pop(place, None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _end(capsule: int) -> None:
    """A capsule that nobody consumed ends: a consumer renames it, and calls the deleter itself.

    It comes as an address: its last reference is gone, and to count another would end it twice.
    """
    if _is_capsule(capsule, _NAME):
        _handed_over.pop(_place_of(capsule, _NAME), None)


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_place_of = ctypes.pythonapi.PyCapsule_GetPointer
_place_of.restype, _place_of.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
