"""A wrong program is caught, also where luck would hide it: memory is overwritten as soon as its tensor is dead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_step
from small_programs import Trip, program, with_address

from autotm.kernels.library import KernelLibrary
from autotm.memory.tiers import open_tiers
from autotm.model.graph import Graph, Initial, Tier
from autotm.model.program import Address, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import deaths, poisoned, prepare
from autotm.runtime.verify import VerificationError, digests, plain_program, reference, results, verify

STEPS = 3
GRAPH = small_step.graph()


def check(library: KernelLibrary, made: Program, *, poison: bool) -> dict[str, str]:
    """Digests of the results of the last step."""
    machine = small_step.machine()
    expected = reference(GRAPH, library, machine, 0, STEPS, small_step.DEVICES)
    arguments = Arguments.allocate(GRAPH)
    arguments.fill(0)
    with open_tiers(machine, small_step.links(), made.fast_bytes, made.slow_bytes, small_step.DEVICES) as tiers:
        executor = prepare(GRAPH, library, made, arguments, tiers)
        verify(GRAPH, poisoned(GRAPH, executor) if poison else executor, expected, STEPS)
    return digests(GRAPH, arguments)


def address(made: Program, kernel: int, slot: int) -> Address:
    return next(s.addresses[slot] for s in made.steps if isinstance(s, KernelStep) and s.kernel == kernel)


ROUND_TRIP = program(GRAPH, frozenset({"vt"}), {"act2": Trip(5, 6)})


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("slow", [frozenset(), frozenset(t.name for t in GRAPH.movable)])
def test_a_right_program_passes(library: KernelLibrary, slow: frozenset[str], poison: bool) -> None:
    expected = reference(GRAPH, library, small_step.machine(), 0, STEPS, small_step.DEVICES)[-1]
    assert check(library, program(GRAPH, slow), poison=poison) == expected
    assert check(library, ROUND_TRIP, poison=poison) == expected


def test_the_results_are_losses_and_updated_parameters_and_change_every_step(library: KernelLibrary) -> None:
    assert set(results(GRAPH)) == {"loss", "v_new", "w_new"}
    found = reference(GRAPH, library, small_step.machine(), 0, STEPS, small_step.DEVICES)
    assert len({digest for step in found for digest in step.values()}) == STEPS * 3


def without_return(made: Program) -> Program:
    return replace(
        made, steps=tuple(s for s in made.steps if not (isinstance(s, MoveStep) and s.destination.tier is Tier.FAST))
    )


def overlapping(made: Program) -> Program:
    """`gact` is written over `error`, which a later kernel reads."""
    place = address(made, 5, 0)
    return with_address(with_address(made, 5, 3, place), 8, 1, place)


@pytest.mark.parametrize("wrong", [overlapping(ROUND_TRIP), with_address(ROUND_TRIP, 9, 1, address(ROUND_TRIP, 0, 2))])
def test_a_program_that_loses_data_is_caught(library: KernelLibrary, wrong: Program) -> None:
    with pytest.raises(VerificationError, match="differs from the plain step"):
        check(library, wrong, poison=False)


def test_a_missing_move_that_luck_hides_is_caught_by_poison(library: KernelLibrary) -> None:
    wrong = without_return(ROUND_TRIP)
    check(library, wrong, poison=False)
    with pytest.raises(VerificationError, match="'v_new'"):
        check(library, wrong, poison=True)


def test_a_step_without_finite_results_cannot_be_verified(library: KernelLibrary) -> None:
    huge = tuple(replace(t, initial=Initial("normal", 1e30)) if t.name == "w" else t for t in GRAPH.tensors)
    graph = Graph(GRAPH.network, GRAPH.scale, GRAPH.batch, GRAPH.kernels, huge)
    with pytest.raises(VerificationError, match="not finite"):
        reference(graph, library, small_step.machine(), 0, 1, small_step.DEVICES)


def test_the_reference_is_kept_and_made_again_when_it_does_not_fit(library: KernelLibrary, tmp_path: Path) -> None:
    machine, file = small_step.machine(), tmp_path / "reference.json"

    def ask(seed: int, steps: int) -> object:
        return reference(GRAPH, library, machine, seed, steps, small_step.DEVICES, file)

    first = ask(0, 2)
    written = file.stat().st_mtime_ns
    assert ask(0, 1) == first
    assert file.stat().st_mtime_ns == written
    assert ask(1, 2) != first
    file.write_text(file.read_text()[:100])
    assert ask(0, 2) == first


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
