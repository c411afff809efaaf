"""The kernels of a fatbin as calls: neither TVM nor a compiler is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotm.kernels.library import FatbinLibrary, Launches
from autotm.kernels.vendor import Vendors
from autotm.memory.gpu import CudaCode, CudaDevice, DeviceArray
from autotm.model.files import BadInputError
from autotm.model.step import Launch, VendorCall

Call = Callable[[], None]


@dataclass(frozen=True)
class LaunchedKernels:
    """Kernels as launches on a device's compute stream.

    Attributes:
        code: loaded on the device.
        launches: of each kernel.
        device: to launch on.
        vendors: NVIDIA's libraries, opened by the first kernel that calls one.
    """

    code: CudaCode
    launches: Launches
    device: CudaDevice
    vendors: Vendors = field(default_factory=Vendors)

    @classmethod
    def on(cls, device: CudaDevice, library: FatbinLibrary) -> LaunchedKernels:
        """The kernels of a library, loaded on a device; they go with its context, when the process ends.

        Raises:
            AutotmError: the driver refuses them.
        """
        return cls(CudaCode.load(library.image, device.index), library.launches, device)

    def bind(self, symbol: str, views: Sequence[DeviceArray]) -> Call:
        """The kernel on views of the device's pool, inputs, outputs, then workspaces; returns when it is launched.

        Raises:
            BadInputError: there is no such kernel.
            AutotmError: the code lacks a function of it, or it calls a library of NVIDIA's that is missing or another.
        """
        if symbol not in self.launches:
            raise BadInputError(f"no launches of kernel '{symbol}': they belong to another graph; make both again")
        addresses = [view.address for view in views]
        calls = [self._bound(one, addresses) for one in self.launches[symbol]]

        def call() -> None:
            for each in calls:
                each()

        return calls[0] if len(calls) == 1 else call

    def _bound(self, launch: Launch | VendorCall, addresses: Sequence[int]) -> Call:
        stream = self.device.compute
        if isinstance(launch, VendorCall):
            return self.vendors.bound(launch, addresses, stream.handle)
        return self.code.bound([launch], addresses, stream)
