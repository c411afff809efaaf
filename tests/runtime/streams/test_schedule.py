"""A program as operations, and the events that order them: none is idle, and no order of streams changes a bit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import small_step
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_streams import SIZES, Planned, plain, run_steps, same
from small_programs import Trip, program
from thread_device import Delays, Interleaving, Order, RaceError, Races, Starving, ThreadDevice

from autotm.kernels.library import KernelLibrary
from autotm.memory.gpu.cuda_memory import Span
from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.program import MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.model.timeline import Lane
from autotm.runtime.streams.schedule import (
    Bytes,
    DeviceArguments,
    Operation,
    Schedule,
    device_bytes,
    operations,
    schedule,
)

GRAPH = small_step.graph()


def listed(compiled: Program, *, poison: bool = False) -> list[Operation]:
    with ThreadDevice(device_bytes(GRAPH, GRAPH, compiled), compiled.slow_bytes) as device:
        return operations(GRAPH, compiled, DeviceArguments.of(GRAPH, GRAPH, compiled, device), poison=poison)


def test_kernels_and_copies_have_their_lanes_and_bytes() -> None:
    listing = listed(program(GRAPH, frozenset(), {"act2": Trip(5, 6)}))
    kernels = [operation for operation in listing if operation.kernel is not None]
    assert [operation.kernel for operation in kernels] == list(range(len(GRAPH.kernels)))
    assert {operation.lane for operation in kernels} == {Lane.COMPUTE}
    out, back = (operation for operation in listing if operation.kernel is None)
    assert (out.lane, back.lane) == (Lane.OUTWARD, Lane.INWARD)
    assert out.reads == back.writes
    assert out.writes == back.reads
    assert out.writes[0].tier is Tier.SLOW
    assert out.is_blocking
    assert out.reads[0].size_bytes == GRAPH.by_name["act2"].size_bytes


def test_an_update_writes_where_its_parameter_is() -> None:
    update = {operation.name: operation for operation in listed(program(GRAPH))}["sgd_w_9"]
    assert update.writes[0] == update.reads[0]


def test_of_moves_that_start_together_the_most_urgent_comes_first() -> None:
    compiled = program(GRAPH, frozenset(), {"hidden": Trip(4, 5), "act2": Trip(4, 6)})
    out = [step for step in compiled.steps if isinstance(step, MoveStep) and step.destination.tier is Tier.SLOW]
    one, other = (
        StartMoveStep(number, step.tensor, step.size_bytes, step.source, step.destination)
        for number, step in enumerate(out)
    )
    steps = (*compiled.steps[:2], one, other, WaitMoveStep(1), WaitMoveStep(0))
    copies = [operation.name for operation in listed(replace(compiled, steps=steps)) if operation.kernel is None]
    assert copies == [other.tensor, one.tensor]


def test_poison_follows_the_last_use() -> None:
    poisoned = [operation for operation in listed(program(GRAPH), poison=True) if operation.is_poison]
    assert poisoned
    assert all(operation.lane is Lane.COMPUTE and not operation.reads for operation in poisoned)


def test_slow_operands_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"operand 'act' is in slow memory.*kind cuda"):
        listed(program(GRAPH, frozenset({"act"})))


POOLS = {tier: SimpleNamespace(name=str(tier), address=0, size_bytes=100) for tier in Tier}


def span(used: Bytes) -> Span:
    return Span(POOLS[used.tier], used.start, used.size_bytes)


def replay(order: Schedule, steps: int = 2, dropped: tuple[int, int] | None = None) -> None:
    """Steps as the race detector sees them."""
    races = Races([str(lane) for lane in Lane])
    for _ in range(steps):
        events = {}
        for index, operation in enumerate(order.operations):
            lane = str(operation.lane)
            for other in order.waits[index]:
                if (index, other) != dropped:
                    races.waited(lane, events[other])
            if operation.reads or operation.writes:
                races.queued(lane, [span(used) for used in operation.reads], [span(used) for used in operation.writes])
            events[index] = races.recorded(lane)


@st.composite
def listings(draw: st.DrawFn) -> list[Operation]:
    def some(tier: Tier) -> Bytes:
        start = draw(st.integers(0, 5))
        return Bytes(tier, 10 * start, 10 * (start + draw(st.integers(1, 2))))

    listing = []
    for number in range(draw(st.integers(1, 14))):
        lane = draw(st.sampled_from(Lane))
        if lane is Lane.COMPUTE:
            reads, writes = ([some(Tier.FAST) for _ in range(draw(st.integers(0, 2)))] for _ in range(2))
        else:
            ends = [some(Tier.SLOW)], [some(Tier.FAST)]
            reads, writes = ends if lane is Lane.INWARD else ends[::-1]
        listing.append(Operation(lane, str(number), None, tuple(reads), tuple(writes)))
    return listing


@settings(deadline=None, max_examples=150)
@given(listings())
def test_events_order_what_must_be_and_none_is_too_many(operations: list[Operation]) -> None:
    order = schedule(operations)
    replay(order)
    last = len(order.operations) - 1
    for index, waits in enumerate(order.waits):
        for other in waits:
            if other and index != last:  # What a step's start and end are for depends on the steps around it.
                with pytest.raises(RaceError):
                    replay(order, 1, (index, other))


def kernel(name: str, reads: int, writes: int) -> Operation:
    return Operation(Lane.COMPUTE, name, 0, (at(Tier.FAST, reads),), (at(Tier.FAST, writes),))


def copy(lane: Lane, fast: int, slow: int, *, is_blocking: bool = False) -> Operation:
    ends = (at(Tier.FAST, fast),), (at(Tier.SLOW, slow),)
    reads, writes = ends if lane is Lane.OUTWARD else ends[::-1]
    return Operation(lane, "moved", None, reads, writes, is_blocking)


def at(tier: Tier, place: int) -> Bytes:
    return Bytes(tier, 10 * place, 10 * place + 10)


def test_a_kernel_waits_for_its_operand_and_a_copy_out_for_the_producer() -> None:
    order = schedule(
        [
            kernel("makes 0", 9, 0),
            copy(Lane.OUTWARD, 0, 0),
            kernel("beside", 9, 1),
            kernel("takes the place of 0", 9, 0),
            copy(Lane.INWARD, 2, 0),
            kernel("uses what came back", 2, 3),
        ]
    )
    assert order.waits == ((), (), (1,), (), (2,), (2,), (5,), ())


def test_a_host_buffer_is_used_again_once_it_was_read() -> None:
    order = schedule(
        [
            kernel("makes 0", 9, 0),
            copy(Lane.OUTWARD, 0, 0),
            copy(Lane.INWARD, 1, 0),
            kernel("makes 2", 9, 2),
            copy(Lane.OUTWARD, 2, 0),
        ]
    )
    assert order.waits[3] == (2,)
    assert order.waits[5] == (4, 3)


def test_a_step_ends_with_its_copies_and_the_next_begins_after_it() -> None:
    order = schedule([copy(Lane.INWARD, 0, 0), kernel("beside", 8, 9), copy(Lane.OUTWARD, 1, 1)])
    assert order.waits == ((), (0,), (), (0,), (3, 1))


def test_the_step_waits_for_blocking_moves_and_they_for_it() -> None:
    moves = [copy(Lane.OUTWARD, 5, 5, is_blocking=True), copy(Lane.INWARD, 6, 6, is_blocking=True)]
    assert schedule([kernel("before", 8, 9), *moves, kernel("after", 8, 9)]).waits == ((), (), (1,), (2,), (3,), ())


@pytest.mark.parametrize("hidden", [Trip(2, 5, 3, 4), Trip(2, 5)])
@pytest.mark.parametrize("act2", [Trip(4, 6, 5, 5), Trip(5, 6)])
@pytest.mark.parametrize("order", [Order(), *map(Delays, range(4)), *map(Interleaving, range(4))], ids=repr)
def test_a_step_equals_the_plain_one(library: KernelLibrary, hidden: Trip, act2: Trip, order: Order) -> None:
    moving = program(GRAPH, frozenset(), {"hidden": hidden, "act2": act2})
    assert same(run_steps(GRAPH, library, moving, order=order), plain(GRAPH, library))


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
        results = run_steps(planned.graph, planned.library, planned.programs[optimizer], order=order, dead=dead)
        assert same(results, planned.expected), order


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_wait_that_is_left_out_is_found(planned: Planned, optimizer: str) -> None:
    """By the check of what is queued, whatever the threads do; and by its effect, once the streams use the freedom."""
    step, orders = (planned.graph, planned.library, planned.programs[optimizer]), []

    def look(whole: Schedule) -> Schedule:
        # The same step, in which nothing waits because the plan has the step wait for a move.
        orders.append(schedule([replace(operation, is_blocking=False) for operation in whole.operations[1:-1]]))
        return orders[0]

    assert same(run_steps(*step, rescheduled=look), planned.expected)
    (order,) = orders
    dropped = [(index, other) for index, waits in enumerate(order.waits) for other in waits]
    kinds = {(str(order.operations[index].lane), str(order.operations[other].lane)) for index, other in dropped}
    assert kinds >= {("compute", "inward"), ("outward", "compute"), ("compute", "outward"), ("inward", "compute")}
    for index, other in dropped:
        waits = list(order.waits)
        waits[index] = tuple(each for each in waits[index] if each != other)
        mutant = {"rescheduled": lambda _, waits=waits: replace(order, waits=tuple(waits))}
        with pytest.raises(RaceError):
            run_steps(*step, **mutant)
        late = starving(order, other)
        assert not same(run_steps(*step, order=late, races=False, **mutant), planned.expected)
        assert same(run_steps(*step, order=late), planned.expected)


def starving(order: Schedule, late: int) -> Starving:
    """The order in which that operation comes as late as it may, in every step."""
    lane = order.operations[late].lane
    work = [index for index, each in enumerate(order.operations) if each.lane is lane and (each.reads or each.writes)]
    before = 1 if lane == "compute" else 0  # Its first work gives TVM its threads.
    return Starving(str(lane), (work.index(late) + before) % len(work), len(work))
