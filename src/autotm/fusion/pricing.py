"""The time of a kernel that computes a group of operators, alone: what a sum of kernels says of a step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from tvm import tirx

from autotm.fusion.compiling import attempted
from autotm.fusion.dataflow import Live
from autotm.fusion.variants import Workbench
from autotm.kernels.compiler import KernelFacts, Request
from autotm.kernels.library import KernelLibrary
from autotm.kernels.tir import extents
from autotm.lower.graph import kernel_call
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, Kernel, Operand, Role, Tensor
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import all_fast_times
from autotm.profile.store import KernelStore


class KernelTimes:
    """Times of kernels that compute groups of a step's operators, all operands in fast memory.

    A kernel that was timed keeps its time, and so do all groups that it computes: what was chosen by times is judged by
    the same ones.

    Attributes:
        failures: which operators a kernel could not be compiled for, and why, by group.
    """

    def __init__(self, bench: Workbench, store: KernelStore, options: ProfileOptions) -> None:
        """Know no time yet.

        Args:
            bench: of the step.
            store: keeps times of kernels.
            options: how they are timed.
        """
        self._bench, self._store, self._options = bench, store, options
        self._by_code: dict[str, float] = {}
        self._code: dict[Live, str] = {}
        self.failures: dict[Live, str] = {}

    def __len__(self) -> int:
        """Return how many different kernels were timed."""
        return len(self._by_code)

    def __contains__(self, group: Live) -> bool:
        """Return whether the time of a group is known."""
        return group in self._code

    def seconds(self, group: Live) -> float:
        """Return the median time of a group's kernel.

        Raises:
            AutotmError: it could not be compiled.
        """
        if group in self.failures:
            raise AutotmError(self.failures[group])
        return self._by_code[self._code[group]]

    def add(self, groups: Iterable[Live]) -> None:
        """Take the times of groups that are not known yet from the store, or measure them and keep them there.

        A group whose kernel cannot be compiled gets no time; the reason is kept.

        Raises:
            AutotmError: as `attempted` and `all_fast_times`.
        """
        bench = self._bench
        new = [group for group in dict.fromkeys(groups) if group not in self._code.keys() | self.failures.keys()]
        functions = [bench.dataflow.primitive(group) for group in new]
        outcomes = [*zip(new, functions, attempted(bench.compiler, [*map(Request, functions)]), strict=True)]
        self.failures |= {
            group: f"{', '.join(bench.dataflow.nodes[place].name for place in group.nodes)}: {outcome}"
            for group, _, outcome in outcomes
            if isinstance(outcome, str)
        }
        made = [(group, function, facts) for group, function, facts in outcomes if not isinstance(facts, str)]
        untimed = {
            facts.identity: (function, facts, _results(bench, group))
            for group, function, facts in made
            if facts.identity not in self._by_code
        }
        if untimed:
            with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
                path = Path(folder) / "kernels.so"
                bench.compiler.link([each for _, each, _ in untimed.values()], path)
                library = KernelLibrary.load(path)
            graph = _side_by_side([_kernel(number, *item) for number, item in enumerate(untimed.values())])
            timings = all_fast_times(graph, library, bench.machine, self._store, self._options, bench.devices_dir)
            self._by_code |= {identity: timings[identity].median_ns / 1e9 for identity in untimed}
        self._code |= {group: facts.identity for group, _, facts in made}


def _results(bench: Workbench, group: Live) -> int:
    return sum(len(bench.dataflow.nodes[place].values) for place in group.results)


def _kernel(number: int, function: tirx.PrimFunc, facts: KernelFacts, results: int) -> Kernel:
    """Return a call of a function on operands that no other call has."""
    name = f"{number:04d}_{facts.op}"
    operands = tuple(
        Operand(f"{name}.{slot}", extents(buffer), str(buffer.dtype)) for slot, buffer in enumerate(function.params)
    )
    inputs = len(operands) - results
    return kernel_call(name, facts, operands[:inputs], operands[inputs:])


def _side_by_side(kernels: list[Kernel]) -> Graph:
    """Return a step of kernels that have nothing to do with one another."""
    roles = (("inputs", Role.INPUT), ("outputs", Role.RESULT), ("workspaces", Role.WORKSPACE))
    tensors = [
        Tensor(
            name=operand.tensor,
            role=role,
            shape=operand.shape,
            dtype=operand.dtype,
            size_bytes=operand.size_bytes,
            producer=None if role is Role.INPUT else index,
            readers=(index,) if role is Role.INPUT else (),
        )
        for index, kernel in enumerate(kernels)
        for slots, role in roles
        for operand in getattr(kernel, slots)
    ]
    return Graph("kernels", "", 1, tuple(kernels), tuple(tensors))
