"""Machine code on a GPU: a fatbin that the driver loads, and launches of its functions."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotm.memory.gpu.cuda.stream import CudaStream
from autotm.model.files import AutotmError
from autotm.model.step import Launch

_SHARED_WITHOUT_ASKING = 48 << 10
"""Dynamic shared memory of a block that needs no attribute (CUDA's programming guide, "Shared memory")."""
_REMEDIES = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernels are built for other GPUs: compile them again for this one's sm",
    "CUDA_ERROR_INVALID_IMAGE": "the file of kernels is damaged: make it again",
    "CUDA_ERROR_NOT_FOUND": "the kernels belong to another graph: make both again",
}
Call = Callable[[], None]


@dataclass(frozen=True)
class CudaCode:
    """A loaded fatbin.

    Attributes:
        driver: the module `cuda.bindings.driver`.
        device: that it is loaded on, as the driver numbers it.
    """

    driver: Any
    device: int
    _library: Any = field(repr=False)

    @classmethod
    def load(cls, image: bytes, device: int, driver: Any = None) -> CudaCode:
        """Have the driver load a fatbin; the device's context must be there.

        Args:
            image: its bytes.
            device: CUDA's number of the GPU.
            driver: the module `cuda.bindings.driver`; None loads it.

        Raises:
            AutotmError: it has no code for this GPU, or is no fatbin.
        """
        module = importlib.import_module("cuda.bindings.driver") if driver is None else driver
        library = _called(module, "cuLibraryLoadData", image, [], [], 0, [], [], 0)
        return cls(module, device, library)

    def bound(self, launches: Sequence[Launch], addresses: Sequence[int], stream: CudaStream) -> Call:
        """The launches of a kernel on operands at these addresses, as one call that returns when all are queued.

        Args:
            launches: in order.
            addresses: of inputs, outputs, then workspaces.
            stream: to launch on.

        Raises:
            AutotmError: the code has no such function, or the GPU has too little shared memory for it.
        """
        calls = [self._launch(launch, [addresses[place] for place in launch.arguments], stream) for launch in launches]

        def call() -> None:
            for each in calls:
                each()

        return calls[0] if len(calls) == 1 else call

    def close(self) -> None:
        """Unload it; nothing of it may run any more."""
        _called(self.driver, "cuLibraryUnload", self._library)

    def _launch(self, launch: Launch, addresses: Sequence[int], stream: CudaStream) -> Call:
        kernel = self._kernel(launch.function)
        if launch.shared_bytes > _SHARED_WITHOUT_ASKING:
            attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _called(self.driver, "cuKernelSetAttribute", attribute, launch.shared_bytes, kernel, self.device)
        function = self.driver.CUfunction(int(kernel))
        parameters = tuple(addresses), (ctypes.c_void_p,) * len(addresses)
        return functools.partial(
            _called, self.driver, "cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared_bytes,
            stream.handle, parameters, 0,
        )  # fmt: skip

    def _kernel(self, name: str) -> Any:
        return _called(self.driver, "cuLibraryGetKernel", self._library, name.encode())


def _called(driver: Any, function: str, *arguments: Any) -> Any:
    error, *given = getattr(driver, function)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        name = str(getattr(error, "name", error))
        remedy = _REMEDIES.get(name)
        raise AutotmError(f"CUDA: {function}: {name}" + (f": {remedy}" if remedy else ""))
    return given[0] if given else None
