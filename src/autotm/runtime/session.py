"""A program that is run step after step on data of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.opening import open_for
from autotm.model.errors import BadInputError, unknown_name
from autotm.model.graph import Graph, Role
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.program import Program
from autotm.model.timeline import StepTrace
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import heaviest_call, prepare
from autotm.runtime.linux_pages import fill_arguments
from autotm.runtime.step_times import trace_steps
from autotm.runtime.verify import results

Array = npt.NDArray[Any]


class Session:
    """Both pools of a program, its arguments and its calls, until it is closed; weights stay from step to step.

    Attributes:
        steps: run so far.
    """

    def __init__(
        self,
        graph: Graph,
        library: KernelLibrary,
        program: Program,
        counts: Counts,
        machine: Machine,
        links: Links,
        devices_dir: Path,
        seed: int,
    ) -> None:
        """Allocate memory and fill the arguments as they are before the first step.

        Args:
            graph: as lowered.
            library: its kernels.
            program: of the graph as `counts` has it.
            counts: what the program's plan places.
            machine: runs it.
            links: copies measured there.
            devices_dir: folder of the device files.
            seed: of what is drawn.

        Raises:
            AutotmError: the system does not give the memory, or kernels run on fewer threads than the machine asks for.
        """
        counted = counting(graph, counts)
        placed, self._graph = program.step_of(counted), graph.computed_by(program.implementations)
        self._machine = machine
        self.steps = 0
        with pinned(machine), ExitStack() as stack:
            tiers = stack.enter_context(open_for(program, machine, links, devices_dir))
            self._arguments = Arguments.in_pools(self._graph, placed, program, tiers)
            self._executor = prepare(placed, library, program, self._arguments, tiers)
            busy = library.busy_threads(machine.threads)
            check_cores(machine, heaviest_call(placed, self._executor), busy=busy)
            fill_arguments(self._executor, (), seed, machine.cpus)
            self._stack = stack.pop_all()

    def feed(self, inputs: Mapping[str, Array]) -> None:
        """Set inputs of the steps to come; the others keep their values.

        Raises:
            BadInputError: no such input, or another shape or type.
        """
        known = {tensor.name for tensor in self._graph.tensors if tensor.role is Role.INPUT}
        for name, value in inputs.items():
            if name not in known:
                raise unknown_name(f"input of network {self._graph.network}", name, known)
            memory = self._arguments.value(name)
            if value.shape != memory.shape or not np.can_cast(value.dtype, memory.dtype, "same_kind"):
                raise BadInputError(
                    f"network {self._graph.network}: input {name} is {value.dtype}{list(value.shape)}; the step was "
                    f"compiled for {memory.dtype}{list(memory.shape)}: give the same shape, or plan again"
                )
            memory[...] = value

    def step(self) -> dict[str, Array]:
        """Run one step; return copies of what it is run for, by name: a loss, or outputs in the network's order."""
        with pinned(self._machine):
            self._executor.step()
        self.steps += 1
        names = [name for name in results(self._graph) if self._graph.by_name[name].alias_of is None]
        return {name: self.value(name) for name in sorted(names, key=_output_number)}

    def trace(self, rounds: int, patience_s: float) -> StepTrace:
        """Run steps on the data at hand, in `rounds` of them with the clock read between all calls.

        Rounds in which others held the cores are repeated, until `patience_s` seconds are spent on them.
        """
        with pinned(self._machine):
            trace, ran = trace_steps(self._executor, self._machine.cpus, rounds, patience_s)
            self._executor.tiers.check()
        self.steps += ran
        return trace

    def value(self, name: str) -> Array:
        """Return a copy of an argument or result as it is now."""
        return self._arguments.value(name).copy()

    def values(self) -> dict[str, Array]:
        """Return copies of parameters and states as they are now."""
        roles = {Role.PARAMETER, Role.STATE}
        return {tensor.name: self.value(tensor.name) for tensor in self._graph.tensors if tensor.role in roles}

    def put(self, values: Mapping[str, Array]) -> None:
        """Set parameters and states; each in its own shape and type."""
        for name, value in values.items():
            self._arguments.value(name)[...] = value

    def close(self) -> None:
        """Give the memory back; nothing can be asked after it."""
        self._stack.close()


def _output_number(result: str) -> int:
    """Return the number of an output, which is called `output.0` and so on; 0 for what has none."""
    number = result.rpartition(".")[2]
    return int(number) if number.isdigit() else 0
