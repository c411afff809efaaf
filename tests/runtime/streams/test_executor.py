"""Planned steps on a device's streams equal the plain one bit for bit, however late each stream is."""

from __future__ import annotations

import pytest
import small_step
from small_programs import Trip, program
from stream_cases import plain, run_steps, same
from thread_device import Delays, Interleaving, Order

from autotm.kernels.library import KernelLibrary

GRAPH = small_step.graph()
TRIPS = {"hidden": Trip(2, 5, 3, 4), "act2": Trip(4, 6, 5, 5)}
BLOCKING = {"hidden": Trip(2, 5), "act2": Trip(5, 6)}


@pytest.mark.parametrize("trips", [TRIPS, BLOCKING, {"hidden": Trip(2, 5, 3, 4), "act2": Trip(5, 6)}])
@pytest.mark.parametrize("order", [Order(), *map(Delays, range(4)), *map(Interleaving, range(4))], ids=repr)
def test_a_step_equals_the_plain_one(library: KernelLibrary, trips: dict[str, Trip], order: Order) -> None:
    made = program(GRAPH, frozenset(), trips)
    assert same(run_steps(GRAPH, library, made, order=order), plain(GRAPH, library))
