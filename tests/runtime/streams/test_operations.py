"""A program as operations: lanes, bytes and order, and what no device can run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import small_step
from small_programs import Trip, program
from thread_device import ThreadDevice

from autotm.model.errors import BadInputError
from autotm.model.graph import Tier
from autotm.model.program import MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.model.timeline import Lane
from autotm.runtime.streams.schedule import DeviceArguments, Operation, device_bytes, operations

GRAPH = small_step.graph()


def listed(made: Program, *, poison: bool = False) -> list[Operation]:
    with ThreadDevice(device_bytes(GRAPH, GRAPH, made), made.slow_bytes) as device:
        return operations(GRAPH, made, DeviceArguments.of(GRAPH, GRAPH, made, device), poison=poison)


def test_kernels_and_copies_have_their_lanes_and_bytes() -> None:
    found = listed(program(GRAPH, frozenset(), {"act2": Trip(5, 6)}))
    kernels = [operation for operation in found if operation.kernel is not None]
    assert [operation.kernel for operation in kernels] == list(range(len(GRAPH.kernels)))
    assert {operation.lane for operation in kernels} == {Lane.COMPUTE}
    out, back = (operation for operation in found if operation.kernel is None)
    assert (out.lane, back.lane) == (Lane.OUTWARD, Lane.INWARD)
    assert out.reads == back.writes
    assert out.writes == back.reads
    assert out.writes[0].tier is Tier.SLOW
    assert out.is_blocking
    assert out.reads[0].size_bytes == GRAPH.by_name["act2"].size_bytes


def test_an_update_writes_where_its_parameter_is() -> None:
    found = {operation.name: operation for operation in listed(program(GRAPH))}
    update = found["sgd_w_9"]
    assert update.writes[0] == update.reads[0]


def test_of_moves_that_start_together_the_most_urgent_comes_first() -> None:
    made = program(GRAPH, frozenset(), {"hidden": Trip(4, 5), "act2": Trip(4, 6)})
    out = [step for step in made.steps if isinstance(step, MoveStep) and step.destination.tier is Tier.SLOW]
    one, other = (
        StartMoveStep(number, step.tensor, step.size_bytes, step.source, step.destination)
        for number, step in enumerate(out)
    )
    steps = (*made.steps[:2], one, other, WaitMoveStep(1), WaitMoveStep(0))
    copies = [operation.name for operation in listed(replace(made, steps=steps)) if operation.kernel is None]
    assert copies == [other.tensor, one.tensor]


def test_poison_follows_the_last_use() -> None:
    found = listed(program(GRAPH), poison=True)
    poisoned = [operation for operation in found if operation.is_poison]
    assert poisoned
    assert all(operation.lane is Lane.COMPUTE and not operation.reads for operation in poisoned)


def test_slow_operands_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"operand 'act' is in slow memory.*kind cuda"):
        listed(program(GRAPH, frozenset({"act"})))


def test_a_cache_is_refused() -> None:
    made = replace(program(GRAPH), cache_traffic_bytes=((0, 0),) * len(GRAPH.kernels))
    with pytest.raises(BadInputError, match="a device has neither"):
        listed(made)
