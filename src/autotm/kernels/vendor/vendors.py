"""NVIDIA's libraries beside each other: what they offer for a problem, and their calls, ready to be launched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotm.kernels.vendor import cublas, cudnn
from autotm.kernels.vendor.loading import VendorError, VendorMissingError
from autotm.model.step import ALIGNMENT_BYTES, Convolution, Product, VendorAlgorithm, VendorCall

_LOG = logging.getLogger(__name__)
_WORKSPACE_ALIGNMENT_BYTES = 256
"""As memory has it that CUDA allocates, which is what the libraries are tried with; operands need less."""
Problem = Convolution | Product


class Vendor(Protocol):
    """A library on the GPU that is current.

    Attributes:
        version: of the library.
    """

    version: str

    def algorithms(self, problem: Problem) -> list[VendorAlgorithm]:
        """What it offers, its favourite first; nothing for what is not its own."""

    def bound(
        self, problem: Problem, algorithm: VendorAlgorithm, pointers: Sequence[int], workspace: int, stream: int
    ) -> Callable[[], None]:
        """A call that launches an algorithm on a stream."""


VENDORS: Mapping[str, Callable[[], Vendor]] = {cudnn.NAME: cudnn.Cudnn, cublas.NAME: cublas.Cublas}
"""By name, what opens a library."""


@dataclass
class Vendors:
    """The libraries, each opened when it is first needed, on the GPU that is current then."""

    _opened: dict[str, Vendor] = field(default_factory=dict)
    _known: dict[Problem, tuple[VendorAlgorithm, ...]] = field(default_factory=dict)

    def installed(self) -> dict[str, str]:
        """Versions of those that are installed; of a missing one a message tells.

        Raises:
            AutotmError: one is installed and does not load, or finds no GPU.
        """
        found = {}
        for name in VENDORS:
            try:
                found[name] = self._vendor(name).version
            except VendorMissingError as error:
                _LOG.info("%s; its algorithms are left out", error)
        return found

    def offers(self, problem: Problem) -> tuple[VendorAlgorithm, ...]:
        """What those offer for a problem that `installed` found."""
        if problem not in self._known:
            self._known[problem] = tuple(
                algorithm for vendor in self._opened.values() for algorithm in vendor.algorithms(problem)
            )
        return self._known[problem]

    def bound(self, call: VendorCall, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """A call that returns when the algorithm is launched.

        Args:
            call: one of a kernel's.
            addresses: of its inputs, outputs, then workspaces.
            stream: a `cudaStream_t` as a number.

        Raises:
            AutotmError: the library is missing, is of another version, or lacks the algorithm on this GPU.
        """
        algorithm = call.algorithm
        try:
            vendor = self._vendor(algorithm.vendor)
        except VendorMissingError as error:
            raise VendorMissingError(f"a kernel needs {algorithm.vendor} {algorithm.version}: {error}") from None
        if vendor.version != algorithm.version:
            raise VendorError(f"a kernel needs {algorithm.vendor} {algorithm.version}, here is {vendor.version}")
        workspace = 0 if call.workspace is None else _aligned(addresses[call.workspace])
        pointers = [addresses[place] for place in call.arguments]
        return vendor.bound(call.problem, algorithm, pointers, workspace, stream)

    def _vendor(self, name: str) -> Vendor:
        if name not in self._opened:
            self._opened[name] = VENDORS[name]()
        return self._opened[name]


def operand_bytes(workspace_bytes: int) -> int:
    """What a workspace takes as an operand, which starts at a multiple of 64 only."""
    return workspace_bytes + _WORKSPACE_ALIGNMENT_BYTES - ALIGNMENT_BYTES


def _aligned(address: int) -> int:
    return -(-address // _WORKSPACE_ALIGNMENT_BYTES) * _WORKSPACE_ALIGNMENT_BYTES
