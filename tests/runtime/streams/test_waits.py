"""Planned steps on streams equal the plain ones bit for bit, however late a stream is, and no wait is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import small_step
from hypothesis import given
from hypothesis import strategies as st
from planned_streams import SIZES, STEPS, Planned
from small_programs import Trip, program
from stream_cases import plain, run_steps, same, without
from thread_device import Delays, Interleaving, Order, RaceError, Starving

from autotm.kernels.library import KernelLibrary
from autotm.runtime.streams.schedule import Schedule, schedule

GRAPH = small_step.graph()
TRIPS = {"hidden": Trip(2, 5, 3, 4), "act2": Trip(4, 6, 5, 5)}
BLOCKING = {"hidden": Trip(2, 5), "act2": Trip(5, 6)}


@pytest.mark.parametrize("trips", [TRIPS, BLOCKING, {"hidden": Trip(2, 5, 3, 4), "act2": Trip(5, 6)}])
@pytest.mark.parametrize("order", [Order(), *map(Delays, range(4)), *map(Interleaving, range(4))], ids=repr)
def test_a_step_equals_the_plain_one(library: KernelLibrary, trips: dict[str, Trip], order: Order) -> None:
    made = program(GRAPH, frozenset(), trips)
    assert same(run_steps(GRAPH, library, made, order=order), plain(GRAPH, library))


OPTIMIZERS = ("synchronous", "asynchronous")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("planned", "dead"),
    [
        pytest.param(name, dead, marks=pytest.mark.slow if name == "mnist" else ())
        for name in SIZES
        for dead in (False, True)
    ],
    indirect=["planned"],
    scope="session",
)
@given(seed=st.integers(0, 2**31 - 1))
def test_planned_equals_plain_over_many_orders(planned: Planned, optimizer: str, dead: bool, seed: int) -> None:
    for order in (Delays(seed), Interleaving(seed)):
        found = run_steps(
            planned.graph, planned.library, planned.programs[optimizer], steps=STEPS, order=order, dead=dead
        )
        assert same(found, planned.expected), order


def needed_by_bytes(given: Schedule) -> Schedule:
    """The same step, in which nothing waits because the plan has the step wait for a move."""
    return schedule([replace(operation, is_blocking=False) for operation in given.operations[1:-1]])


def seen(planned: Planned, optimizer: str) -> Schedule:
    found: list[Schedule] = []

    def look(given: Schedule) -> Schedule:
        found.append(needed_by_bytes(given))
        return found[-1]

    step = planned.graph, planned.library, planned.programs[optimizer]
    assert same(run_steps(*step, steps=STEPS, rescheduled=look), planned.expected)
    return found[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_wait_that_is_left_out_is_found(planned: Planned, optimizer: str) -> None:
    """By the check of what is queued, whatever the threads do; and by its effect, once the streams use the freedom."""
    step = planned.graph, planned.library, planned.programs[optimizer]
    order = seen(planned, optimizer)
    dropped = [(index, other) for index, waits in enumerate(order.waits) for other in waits]
    kinds = {(str(order.operations[index].lane), str(order.operations[other].lane)) for index, other in dropped}
    assert kinds >= {("compute", "inward"), ("outward", "compute"), ("compute", "outward"), ("inward", "compute")}
    for index, other in dropped:

        def mutant(given: Schedule, index: int = index, other: int = other) -> Schedule:
            return without(index, other)(needed_by_bytes(given))

        with pytest.raises(RaceError):
            run_steps(*step, steps=STEPS, rescheduled=mutant)
        late = starving(order, other)
        assert not same(run_steps(*step, steps=STEPS, order=late, races=False, rescheduled=mutant), planned.expected)
        assert same(run_steps(*step, steps=STEPS, order=late), planned.expected)


def starving(order: Schedule, late: int) -> Starving:
    """The order in which that operation comes as late as it may, in every step."""
    lane = order.operations[late].lane
    work = [index for index, each in enumerate(order.operations) if each.lane is lane and (each.reads or each.writes)]
    before = 1 if lane == "compute" else 0  # Its first work gives TVM its threads.
    return Starving(str(lane), (work.index(late) + before) % len(work), len(work))
