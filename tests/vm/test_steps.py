"""Planned steps on real second memories compute what the plain step computes, bit for bit."""

from __future__ import annotations

import pytest
import small_step
from small_programs import Trip, program

from autotm.kernels.library import KernelLibrary
from autotm.memory.tiers import open_tiers
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import poisoned, prepare
from autotm.runtime.verify import reference, verify

STEPS = 3
GRAPH = small_step.graph()
PROGRAMS = {
    "all fast": program(GRAPH),
    "all slow": program(GRAPH, frozenset(tensor.name for tensor in GRAPH.movable)),
    "moved": program(GRAPH, frozenset({"vt"}), {"act2": Trip(5, 6)}),
    "moved beside kernels": program(GRAPH, frozenset({"vt"}), {"act2": Trip(4, 6, left=5, call=5)}),
}


@pytest.mark.parametrize("kind", ["numa", "dax", "device"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits(kind: str, name: str, library: KernelLibrary, request: pytest.FixtureRequest) -> None:
    machine, made = request.getfixturevalue(kind), PROGRAMS[name]
    expected = reference(GRAPH, library, machine, 0, STEPS, small_step.DEVICES)
    with open_tiers(machine, small_step.links(), made.fast_bytes, made.slow_bytes, small_step.DEVICES) as tiers:
        arguments = Arguments.allocate(GRAPH, tiers=tiers)
        arguments.fill(0, machine.cpus)
        executor = poisoned(GRAPH, prepare(GRAPH, library, made, arguments, tiers))
        verify(GRAPH, executor, expected, STEPS)
        tiers.check()
