"""Network -> step whose kernels run on a GPU: graph, launches and source; and kernels to run during copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tvm

from autotm.kernels.calibration_kernels import co_runner_functions
from autotm.kernels.compiler import KernelFacts, Request
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.source import ARCHITECTURES, CudaKernel, fatbin
from autotm.kernels.library import FatbinLibrary, Launches
from autotm.lower.lowering import Alternative, Implementations, make_step, with_alternatives
from autotm.model.files import save
from autotm.model.graph import SCHEDULES_KEY, Graph, OpClass
from autotm.model.machine import Products
from autotm.zoo import Network


@dataclass(frozen=True)
class CudaStep:
    """A step for a GPU; nothing is compiled.

    Attributes:
        graph: the step as data; workspaces of kernels are those of their GPU implementations.
        kernels: by symbol, those of the graph's kernels and of their alternatives.
    """

    graph: Graph
    kernels: Mapping[str, CudaKernel]

    @property
    def launches(self) -> Launches:
        """Launches of every kernel, by symbol."""
        return {symbol: kernel.launches for symbol, kernel in self.kernels.items()}


def cuda_step(
    network: Network,
    scale: str,
    device: CudaDevice,
    implementations: Implementations = "default",
    products: Products = "float32",
) -> CudaStep:
    """Return the step with kernels for a device; with `all`, a plan may choose among all variants of a kernel.

    Where `products` are not float32, contractions round their factors where that is faster by estimate.

    Raises:
        AutotmError: an operator has no gradient or no kernel.
    """
    kernels: dict[str, CudaKernel] = {}

    def make(requests: Sequence[Request]) -> list[KernelFacts]:
        generated = [cuda_kernel(one.func, device, one.implementation, products) for one in requests]
        for kernel in generated:
            kernels.setdefault(kernel.symbol, kernel)
        return [KernelFacts(**{f.name: getattr(kernel, f.name) for f in fields(KernelFacts)}) for kernel in generated]

    step = make_step(network, scale, tvm.target.Target("llvm"), make, "default")
    graph = step.graph
    if implementations == "all":
        # All other variants: only a profile can tell which one is fastest, and what that costs.
        alternatives = {}
        for item in step.kernels:
            facts = make([Request(step.functions[item.symbol], name) for name in item.others])
            alternatives[item.symbol] = tuple(map(Alternative, item.others, facts))
        graph = with_alternatives(graph, alternatives)
    return CudaStep(graph, kernels)


def lower_for_gpu(
    network: Network,
    scale: str,
    device: CudaDevice,
    graph_path: Path,
    library_path: Path,
    provenance: Mapping[str, Any],
    objects: Path | None = None,
    implementations: Implementations = "default",
    products: Products = "float32",
) -> Graph:
    """Write the library of GPU kernels (`FatbinLibrary`), then the graph, of one step; both whole or not at all.

    `objects` is a folder that keeps machine code for the next call.

    Raises:
        AutotmError: an operator has no gradient or no kernel, or there is no nvcc.
    """
    step = cuda_step(network, scale, device, implementations, products)
    binary = fatbin(step.kernels.values(), folder=objects)
    FatbinLibrary.save(library_path, binary.image, ARCHITECTURES, step.launches)
    kinds = {symbol: kernel.kind for symbol, kernel in step.kernels.items()}
    save(graph_path, "graph", step.graph, {**provenance, SCHEDULES_KEY: dict(sorted(kinds.items()))})
    return step.graph


def co_runners_for_gpu(
    device: CudaDevice, library_path: Path, products: Products = "float32"
) -> tuple[FatbinLibrary, dict[OpClass, CudaKernel]]:
    """Write a library of a kernel of each op class, to be run during copies.

    Raises:
        AutotmError: there is no nvcc.
    """
    kernels = {
        op_class: cuda_kernel(function.with_attr("global_symbol", str(op_class)), device, products=products)
        for op_class, function in co_runner_functions().items()
    }
    image = fatbin(kernels.values()).image
    launches = {kernel.symbol: kernel.launches for kernel in kernels.values()}
    return FatbinLibrary.save(library_path, image, ARCHITECTURES, launches), kernels
