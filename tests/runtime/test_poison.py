"""Tensors are overwritten as soon as they are dead, and not before."""

import small_step
from small_programs import Trip, program

from autotm.model.graph import Tier
from autotm.model.program import KernelStep, MoveStep, StartMoveStep, WaitMoveStep
from autotm.runtime.executor import deaths
from autotm.runtime.verify import plain_program


def test_a_tensor_dies_at_its_last_reader_and_a_workspace_at_its_kernel() -> None:
    graph = small_step.graph()
    plain = plain_program(graph)
    found = {
        (step.kernel, offset): size
        for step, dead in zip(plain.steps, deaths(graph, plain), strict=True)
        for _, offset, size in dead
        if isinstance(step, KernelStep)
    }
    offset, expected = 0, {}
    for tensor in graph.movable:
        expected[tensor.live.stop - 1, offset] = tensor.size_bytes
        offset += tensor.allocated_bytes
    assert found == expected


def test_a_moved_tensor_dies_in_fast_memory_when_it_leaves_and_again_after_its_return() -> None:
    graph = small_step.graph()
    made = program(graph, trips={"act2": Trip(5, 6)})
    dead = deaths(graph, made)
    moves = [index for index, step in enumerate(made.steps) if isinstance(step, MoveStep)]
    away, back = (made.steps[index] for index in moves)
    size = graph.by_name["act2"].size_bytes
    assert dead[moves[0]] == [(Tier.FAST, away.source.offset, size)]
    assert dead[moves[1]] == [(Tier.SLOW, back.source.offset, size)]
    last = next(i for i, step in enumerate(made.steps) if isinstance(step, KernelStep) and step.kernel == 6)
    assert (Tier.FAST, back.destination.offset, size) in dead[last]


def test_both_ends_of_a_async_copy_are_alive_until_it_is_waited_for() -> None:
    graph = small_step.graph()
    made = program(graph, trips={"hidden": Trip(2, 5, 3, 4)})
    dead = deaths(graph, made)
    starts = [i for i, step in enumerate(made.steps) if isinstance(step, StartMoveStep)]
    waits = [i for i, step in enumerate(made.steps) if isinstance(step, WaitMoveStep)]
    away, back = (made.steps[index] for index in starts)
    size = graph.by_name["hidden"].size_bytes
    assert [dead[index] for index in starts] == [[], []]
    assert dead[waits[0]] == [(Tier.FAST, away.source.offset, size)]
    assert dead[waits[1]] == [(Tier.SLOW, back.source.offset, size)]
