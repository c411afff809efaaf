"""A program on a GPU, with its control flow on the host, within one kernel, or in a graph of launches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotm.control.cuda import CudaFunction, Form, compiled_library, lower_for_gpu, require_ptx
from autotm.control.program import Array, Program
from autotm.control.rewrites import Rewrites
from autotm.kernels.cuda.device import DEVICES, device_like
from autotm.memory.gpu.opening import gpu_facts
from autotm.model.errors import AutotmError, BadInputError
from autotm.systems.source import Prepared, Ready

_REWRITES = Rewrites(pack_weights=False)
"""A GPU reads weights as they lie."""


def _ready(program: Program, form: Form, *, is_graph: bool = False) -> Ready:
    try:
        gpu = gpu_facts()[0]
        device, missing = device_like(gpu.name, gpu.capability), ""
    except BadInputError:
        raise
    except AutotmError as error:
        device, missing = DEVICES["h100"], str(error)
    program = _REWRITES.apply(program)
    made = lower_for_gpu(program, device, form)
    if is_graph and made.reads_on_host:
        raise BadInputError("data decide the control flow, so that its launches are no fixed graph")
    if is_graph and missing:
        raise BadInputError(f"the code of cuda-host, not run: {missing}")
    if missing:
        require_ptx(made, device.arch)
        raise BadInputError(f"compiled by nvcc to PTX for {device.arch}, not run: {missing}")
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        library = compiled_library(made, device.arch, Path(folder))
        function = CudaFunction(program, made, library, is_graph=is_graph)

    def on(arguments: Sequence[Array]) -> Prepared:
        function.bind(*arguments)
        return Prepared(call)

    def call() -> tuple[Array, ...]:
        function.run()
        return function.results()

    return on


def on_host(program: Program, _threads: int) -> Ready:
    """Compile a program whose driver runs on the host and launches kernels."""
    return _ready(program, "host")


def within_kernel(program: Program, _threads: int) -> Ready:
    """Compile a program that is one kernel, all of whose blocks stay until it ends."""
    return _ready(program, "persistent")


def as_graph(program: Program, _threads: int) -> Ready:
    """Compile a program whose launches are captured once and launched as one graph."""
    return _ready(program, "host", is_graph=True)
