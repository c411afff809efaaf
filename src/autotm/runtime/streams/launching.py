"""The kernels of a fatbin as calls: neither TVM nor a compiler is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotm.kernels.library import FatbinLibrary
from autotm.memory.gpu import CudaCode, CudaDevice, DeviceArray
from autotm.model.files import BadInputError
from autotm.model.step import Launch


@dataclass(frozen=True)
class LaunchedKernels:
    """Kernels as launches on a device's compute stream.

    Attributes:
        code: loaded on the device.
        launches: of each kernel, by the name that the graph has for its function.
        device: to launch on.
    """

    code: CudaCode
    launches: Mapping[str, Sequence[Launch]]
    device: CudaDevice

    @classmethod
    def on(cls, device: CudaDevice, library: FatbinLibrary) -> LaunchedKernels:
        """The kernels of a library, loaded on a device; they go with its context, when the process ends.

        Raises:
            AutotmError: the driver refuses them.
        """
        return cls(CudaCode.load(library.image, device.index), library.launches, device)

    def bind(self, symbol: str, views: Sequence[DeviceArray]) -> Callable[[], None]:
        """The kernel on views of the device's pool, inputs, outputs, then workspaces; returns when it is launched.

        Raises:
            BadInputError: there is no such kernel.
            AutotmError: the code lacks a function of it.
        """
        if symbol not in self.launches:
            raise BadInputError(f"no launches of kernel '{symbol}': they belong to another graph; make both again")
        return self.code.bound(self.launches[symbol], [view.address for view in views], self.device.compute)
