"""A fused kernel as a Python script of its own: its operators as a module, timed in one kernel and in several."""

from __future__ import annotations

import functools
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm

from autotm.fusion.dataflow import Dataflow, Grouping, Live
from autotm.kernels.compiler import KernelCompiler, Request
from autotm.kernels.library import Array, BoundKernel, KernelLibrary, aligned_empty, pinned
from autotm.kernels.target import host_target
from autotm.lower.calls import extract_calls
from autotm.lower.graph import workspaces
from autotm.model.cores import quiet_interpreter, usable_cpus
from autotm.model.errors import BadInputError
from autotm.model.fusion import AuditedFusion
from autotm.model.machine import EmulatedTier, Machine
from autotm.profile.kernel_timing import MAX_COPIES, Filler, ProfileOptions, time_interleaved

Kernels = Mapping[str, Sequence[Sequence[int]]]
"""Ways to compute some operators, by name: the operators of each kernel, by their places in the module."""
_TIMING = ProfileOptions(max_repeats=2000, kernel_s=2.0, rotation_bytes=1_000_000)
_TOLERANCE = 1e-4
"""Largest difference of a result, as a share of the largest number there: sums of thousands have another order."""
_LONGEST_NAME = 60
"""Characters of a file's name, of what the operators compute."""
_SCRIPT = '''"""{title}: one kernel by TVM's fusion, against others.

{about}

Run it where autotm can be imported. It prints medians of the kernels, in turn.
"""

{imports}
from autotm.fusion.replay import replay


{module}


if __name__ == "__main__":
    replay(Module, {kernels}, threads={threads})
'''


def script_of(flow: Dataflow, live: Live, fusion: AuditedFusion, about: str, threads: int) -> str:
    """Return a Python script that times a fused kernel and what the audit put in its place, of the operators alone.

    Args:
        flow: of the step.
        live: the fused kernel.
        fusion: what is known of it.
        about: where it is from, for people; lines.
        threads: of its kernels.
    """
    # Modules of PyTorch have parameters whose names begin with a digit: no name in Python.
    text = re.sub(r"(?<!\w)(?=\d+_[A-Za-z_])", "p", flow.module_of(live).script())
    head, _, module = text.partition("\n\n")
    places = {name: place for place, name in enumerate(fusion.operators)}
    kernels = {"fused": [[*places.values()]], "off": [[place] for place in places.values()]}
    if fusion.partial:
        kernels["partial"] = [[places[name] for name in part] for part in fusion.partial]
    imports = "\n".join(line.removeprefix("# ") for line in head.splitlines())
    return _SCRIPT.format(
        title=fusion.title, about=about, imports=imports, module=module.rstrip(), kernels=kernels, threads=threads
    )


def file_name(number: int, fusion: AuditedFusion) -> str:
    """Return the name of a fusion's script, such as `1-conv2d-add-silu.py`."""
    words = re.sub(r"[^A-Za-z0-9_]+", "-", fusion.title)[:_LONGEST_NAME].strip("-")
    return f"{number}-{words}.py"


def replay(module: tvm.IRModule, kernels: Kernels, threads: int, options: ProfileOptions = _TIMING) -> dict[str, float]:
    """Time the operators of a module as several ways compute them, in turn, and print medians and ratios to the first.

    Args:
        module: `main` calls an operator after the other.
        kernels: the ways.
        threads: of the kernels; fewer where there are not as many cores.
        options: how they are timed; operands rotate over copies as those of the audit.

    Returns:
        Seconds by the ways' names.

    Raises:
        BadInputError: the ways do not compute the same.
        AutotmError: there is no C compiler.
    """
    cpus = usable_cpus()[:threads]
    none = EmulatedTier(kind="emulated", device="", share="whole")  # No slow memory is opened.
    machine = Machine("here", len(cpus), cpus, "host", none, "")
    target = host_target(machine.threads)
    flow = Dataflow(module, target)
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder, pinned(machine):
        compiler = KernelCompiler(Path(folder), target, machine.threads)
        ways = {name: _Way(flow, groups, compiler, Path(folder) / f"{name}.so") for name, groups in kernels.items()}
        first = next(iter(ways.values()))
        copies = max(1, min(MAX_COPIES, math.ceil(options.rotation_bytes / max(first.size_bytes, 1))))
        filler = Filler(options.seed)
        bound = [[way.bound(filler) for _ in range(copies)] for way in ways.values()]
        for name, (own, *_) in zip(ways, bound, strict=True):
            _require_same(name, own, bound[0][0])
        with quiet_interpreter():
            calls = [[functools.partial(_run, kernels) for kernels, _ in own] for own in bound]
            timings = time_interleaved(calls, [None] * len(calls), options)
    seconds = {name: timing.median_ns / 1e9 for name, timing in zip(ways, timings, strict=True)}
    whole_s = seconds[next(iter(ways))]
    for name, own_s in seconds.items():
        print(f"{name}: {own_s * 1e6:.4g} us, {own_s / whole_s:.3f}")  # noqa: T201 - a script's answer
    return seconds


Bound = tuple[list[BoundKernel], dict[str, Array]]
"""Kernels bound to memory, and the results."""


class _Way:
    """One way to compute the operators, compiled.

    Attributes:
        size_bytes: of all tensors.
    """

    def __init__(
        self, flow: Dataflow, groups: Sequence[Sequence[int]], compiler: KernelCompiler, library: Path
    ) -> None:
        operators = flow.operators
        views = [[place] for place, node in enumerate(flow.nodes) if node.function is None]
        grouping = Grouping.of([*([operators[at] for at in group] for group in groups), *views])
        fused = flow.fused(grouping)
        self._calls, self._returned = extract_calls(fused)
        functions = [fused[call.function].without_attr("global_symbol") for call in self._calls]
        self._facts = compiler.make([Request(function) for function in functions])
        compiler.link(self._facts, library)
        self._library = KernelLibrary.load(library)
        shapes = {one.tensor: one for call in self._calls for one in (*call.inputs, *call.outputs)}
        self.size_bytes = sum(one.size_bytes for one in shapes.values())

    def bound(self, filler: Filler) -> Bound:
        """Bind the kernels to memory of their own, filled with numbers."""
        memory: dict[str, Array] = {}

        def array(name: str, shape: tuple[int, ...], dtype: str) -> Array:
            if name not in memory:
                memory[name] = aligned_empty(shape, dtype)
                filler.fill(memory[name])
            return memory[name]

        kernels = []
        for call, facts in zip(self._calls, self._facts, strict=True):
            operands = (*call.inputs, *call.outputs, *workspaces(call.function, facts))
            # An operand may be read in another shape.
            views = [array(one.tensor, one.shape, one.dtype).reshape(one.shape) for one in operands]
            kernels.append(self._library.bind(facts.symbol, views))
        return kernels, {str(at): memory[one.tensor] for at, one in enumerate(self._returned)}


def _run(kernels: Sequence[BoundKernel]) -> None:
    for kernel in kernels:
        kernel()


def _require_same(name: str, own: Bound, first: Bound) -> None:
    """Run two ways, and raise where a result differs by more than another order of sums explains."""
    for kernels, _ in (own, first):
        _run(kernels)
    for place, value in own[1].items():
        wanted = first[1][place]
        scale = float(np.max(np.abs(wanted), initial=0.0))
        if not np.allclose(value, wanted, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
            raise BadInputError(f"{name}: result {place} differs from that of the first way; please report the script")
