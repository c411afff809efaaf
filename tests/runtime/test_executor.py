"""A program computes the step, takes the time of its moves, leaves nothing behind; a wrong one is caught."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_step
from small_programs import Trip, program, with_address
from stand_in_clock import StandInClock

from autotm.kernels.library import KernelLibrary
from autotm.memory.opening import open_tiers
from autotm.model.cores import Round, Watch
from autotm.model.errors import AutotmError
from autotm.model.graph import Graph, Initial, Tier
from autotm.model.links import Links
from autotm.model.program import Address, KernelStep, MoveStep, Program, StartMoveStep, WaitMoveStep
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, deaths, poisoned, prepare
from autotm.runtime.step_times import RunOptions, time_parts, time_steps
from autotm.runtime.verify import (
    VerificationError,
    all_fast_program,
    digests,
    plain_program,
    reference,
    results,
    verify,
)

ASYNC_MOVES = {"hidden": Trip(2, 5, 3, 4), "act2": Trip(4, 6, 5, 5)}
"""Out and back between two kernels that use the tensor."""
READINGS = 20
"""Nanoseconds: as many readings of the stand-in clock as a step of a program may take."""


def numpy_step(values: dict[str, np.ndarray]) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss and new weights of one step, in float64."""
    hidden = values["x"] @ values["w"]
    act = np.maximum(hidden, 0)
    error = act @ values["v"] - values["target"]
    gact = error @ values["v"].T * (hidden > 0)
    rate = small_step.RATE / len(error)
    return (error**2).sum(), values["w"] - rate * values["x"].T @ gact, values["v"] - rate * act.T @ error


GRAPH, CPUS = small_step.graph(), small_step.machine().cpus
STRETCHED = replace(small_step.links(), emulation_stretch=2000.0)


@contextmanager
def prepared(library: KernelLibrary, compiled: Program, links: Links | None = None) -> Iterator[Executor]:
    """The program in memory of its own, its arguments filled."""
    arguments = Arguments.allocate(GRAPH)
    arguments.fill(1)
    pools = compiled.fast_bytes, compiled.slow_bytes
    with open_tiers(small_step.machine(), links or small_step.links(), *pools, small_step.DEVICES) as tiers:
        yield prepare(GRAPH, library, compiled, arguments, tiers)


@pytest.mark.parametrize("slow", [frozenset(), frozenset({"act", "vt", "error"})])
@pytest.mark.parametrize(
    "trips",
    [{}, {"act2": Trip(5, 6)}, ASYNC_MOVES, ASYNC_MOVES | {"act2": Trip(5, 6)}],
    ids=["none", "blocking", "flying", "both"],
)
def test_a_step_computes_the_step(library: KernelLibrary, slow: frozenset[str], trips: dict[str, Trip]) -> None:
    with prepared(library, program(GRAPH, slow, trips)) as executor:
        arguments = executor.arguments
        values = {name: arguments.value(name).astype(np.float64) for name in ("x", "w", "v", "target")}
        for _ in range(3):
            executor.step()
            loss, values["w"], values["v"] = numpy_step(values)
            assert arguments.value("loss")[0] == pytest.approx(loss, rel=1e-5)
            np.testing.assert_allclose(arguments.value("w"), values["w"], atol=1e-5)
            np.testing.assert_allclose(arguments.value("v"), values["v"], atol=1e-5)


CLOCKED = ("memory.emulation", "memory.copies", "memory.kinds.emulated", "runtime.executor")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    """A clock by which kernels and memory take no time: only what is emulated does."""
    return StandInClock(tick_ns=1).put_into(monkeypatch, *CLOCKED)


def test_slow_operands_and_moves_take_their_emulated_time(library: KernelLibrary, stand_in: StandInClock) -> None:
    compiled = program(GRAPH, frozenset({"act"}), {"act2": Trip(5, 6)})
    with prepared(library, compiled, STRETCHED) as executor:
        times = dict(zip(compiled.steps, executor.instrumented_step(), strict=True))
    size_bytes, to_slow, to_fast = 32 * 64 * 4, 12e9, 29e9
    moves = {step.destination.tier: times[step] for step in compiled.steps if not isinstance(step, KernelStep)}
    assert moves[Tier.SLOW] == pytest.approx(size_bytes / to_slow * 1e9 * STRETCHED.emulation_stretch, abs=READINGS)
    assert moves[Tier.FAST] == pytest.approx(size_bytes / to_fast * 1e9 * STRETCHED.emulation_stretch, abs=READINGS)
    kernels = {step.kernel: times[step] for step in compiled.steps if isinstance(step, KernelStep)}
    waits = {kernel for kernel, time_ns in kernels.items() if time_ns > READINGS}
    assert waits == {1, 2}, "kernel 1 writes slow memory, and 2 reads it"
    assert kernels[1] > kernels[2], "writing costs more"
    assert stand_in.now_ns == pytest.approx(sum(times.values()), abs=10 * READINGS)


def test_async_copies_spend_their_time_beside_kernels_or_in_the_wait(
    library: KernelLibrary, stand_in: StandInClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = program(GRAPH, trips={"hidden": Trip(2, 5, 3, 4)})
    stand_in.hold_sleeps_until_a_copy_is_waited_for(monkeypatch)
    with prepared(library, compiled, STRETCHED) as executor:
        marks = executor.marked_step()
    began, ended = (
        {step: marks[span[at]] for step, span in zip(compiled.steps, executor.spans, strict=True)} for at in (0, 1)
    )
    rates = {Tier.SLOW: 2.5e9, Tier.FAST: 2.0e9}
    for start in (step for step in compiled.steps if isinstance(step, StartMoveStep)):
        wait, copy = WaitMoveStep(start.move), executor.async_copies[start.move]
        copy_ns = 32 * 64 * 4 / rates[start.destination.tier] * 1e9 * STRETCHED.emulation_stretch
        assert copy.ended_ns - copy.started_ns == pytest.approx(copy_ns, abs=READINGS)
        assert copy.started_ns <= ended[start] <= began[wait] <= copy.ended_ns <= ended[wait], "kernels ran beside it"
        assert ended[start] - began[start] < READINGS
        assert ended[wait] - began[wait] == pytest.approx(copy_ns, abs=READINGS), "kernels take no time to hide it"


def test_a_step_that_fails_leaves_no_copy_behind(library: KernelLibrary) -> None:
    compiled = program(GRAPH, trips=ASYNC_MOVES)
    with prepared(library, compiled, replace(small_step.links(), emulation_stretch=1e4)) as executor:
        start = next(i for i, step in enumerate(compiled.steps) if isinstance(step, StartMoveStep))
        executor.calls[executor.spans[start][0]]()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("autotm-to-")]


def test_addresses_outside_the_pool_are_refused_before_anything_runs(library: KernelLibrary) -> None:
    right = program(GRAPH)
    wrong = with_address(right, 1, 1, Address(Tier.FAST, right.fast_bytes))
    with pytest.raises(AutotmError, match="pool"), prepared(library, wrong):
        pass


def test_steps_are_timed_until_both_minima_are_met(
    library: KernelLibrary, stand_in: StandInClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 4.4 ms, all of it emulated."""
    stand_in.put_into(monkeypatch, "model.cores")
    with prepared(library, program(GRAPH, frozenset({"act"}), {"act2": Trip(5, 6)}), STRETCHED) as executor:
        by_count = time_steps(executor.step, None, CPUS, RunOptions(4, 0.0))
        by_seconds = time_steps(executor.step, None, CPUS, RunOptions(1, 0.03))
        parts = time_parts(GRAPH, executor, 3)
    step_s = by_count.samples_s[0]
    assert by_count.samples_s == pytest.approx([step_s] * 4)
    assert by_seconds.samples_s == pytest.approx([step_s] * math.ceil(0.03 / step_s))
    assert set(parts.kernels_us) == {kernel.name for kernel in GRAPH.kernels}
    assert sum(parts.kernels_us.values()) + parts.moves_us == pytest.approx(step_s * 1e6, rel=1e-3)


def nothing() -> None:
    """A step of which only made-up times count."""


@pytest.mark.parametrize(
    ("slowdowns", "rounds"),
    [
        ([1.2], 4),  # nothing scatters, but min_seconds are not over before
        ([1.0, 1.3], 11),  # three times min_seconds end it
        ([1.0, 1.05], 6),
    ],
)
def test_steps_that_scatter_are_timed_longer(
    monkeypatch: pytest.MonkeyPatch, slowdowns: list[float], rounds: int
) -> None:
    # The machine's speed changes from round to round, which the step beside shares.
    speeds = itertools.cycle([1.0, 1.5, 0.8])
    walls = itertools.chain.from_iterable(
        (slowdown * speed, speed) for slowdown, speed in zip(itertools.cycle(slowdowns), speeds)
    )
    monkeypatch.setattr(Watch, "timed", lambda *_: Round(None, 0, round(next(walls) * 1e9)))
    times = time_steps(nothing, nothing, CPUS, RunOptions(3, 4.5, precision=0.022))
    assert len(times.samples_s) == len(times.all_fast_s) == rounds


def test_the_slow_down_is_as_precise_as_asked_where_some_steps_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen where cores are shared: steps scatter by 2 %, and one of ten takes a quarter longer."""
    generator = np.random.default_rng(20)
    slow_down, asked = 1.3, 0.01

    def timed(*_: object) -> Round[None]:
        long = 1.25 if generator.random() < 0.1 else 1.0
        return Round(None, 0, round(next(walls) * long * generator.normal(1.0, 0.02) * 1e6))

    monkeypatch.setattr(Watch, "timed", timed)
    errors, rounds = [], []
    for _ in range(100):
        walls = itertools.cycle([30.0 * slow_down, 30.0])
        times = time_steps(nothing, nothing, CPUS, RunOptions(5, 0.5, precision=asked))
        errors.append(statistics.median(times.samples_s) / statistics.median(times.all_fast_s) / slow_down - 1)
        rounds.append(len(times.samples_s))
    assert np.sqrt(np.mean(np.square(errors))) < asked
    assert abs(np.mean(errors)) < asked / 3
    assert np.mean(rounds) < 30, "a mean's error would ask for all 39 that are allowed"


def test_the_all_fast_program_reuses_memory() -> None:
    assert GRAPH.peak_live_bytes <= all_fast_program(GRAPH).fast_bytes < plain_program(GRAPH).fast_bytes


def test_rounds_that_others_disturb_are_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "timed", lambda *_: Round(None, 10**9, 10**9))
    times = time_steps(nothing, nothing, CPUS, RunOptions(3, 0.0, patience_s=9.0))
    assert len(times.samples_s) == len(times.all_fast_s) == times.disturbed == 5, "two seconds each, beyond nine"
    assert times.waited_s == times.all_fast_waited_s == (1.0,) * 5, "what each step lost, not each round"
    assert times.disturbed_count


STEPS = 3


def check(library: KernelLibrary, compiled: Program, *, poison: bool) -> dict[str, str]:
    """Digests of the results of the last step."""
    machine = small_step.machine()
    expected = reference(GRAPH, library, machine, 0, STEPS, small_step.DEVICES)
    arguments = Arguments.allocate(GRAPH)
    arguments.fill(0)
    with open_tiers(machine, small_step.links(), compiled.fast_bytes, compiled.slow_bytes, small_step.DEVICES) as tiers:
        executor = prepare(GRAPH, library, compiled, arguments, tiers)
        verify(GRAPH, poisoned(GRAPH, executor) if poison else executor, expected, STEPS)
    return digests(GRAPH, arguments)


def address(compiled: Program, kernel: int, slot: int) -> Address:
    return next(s.addresses[slot] for s in compiled.steps if isinstance(s, KernelStep) and s.kernel == kernel)


ROUND_TRIP = program(GRAPH, frozenset({"vt"}), {"act2": Trip(5, 6)})


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("slow", [frozenset(), frozenset(t.name for t in GRAPH.movable)])
def test_a_right_program_passes(library: KernelLibrary, slow: frozenset[str], poison: bool) -> None:
    expected = reference(GRAPH, library, small_step.machine(), 0, STEPS, small_step.DEVICES)[-1]
    assert check(library, program(GRAPH, slow), poison=poison) == expected
    assert check(library, ROUND_TRIP, poison=poison) == expected


def test_the_results_are_losses_and_updated_parameters_and_change_every_step(library: KernelLibrary) -> None:
    assert set(results(GRAPH)) == {"loss", "v_new", "w_new"}
    by_step = reference(GRAPH, library, small_step.machine(), 0, STEPS, small_step.DEVICES)
    assert len({digest for step in by_step for digest in step.values()}) == STEPS * 3


def test_a_program_that_loses_data_is_caught(library: KernelLibrary) -> None:
    error = address(ROUND_TRIP, 5, 0)  # `gact` is written over it, though a later kernel reads it.
    overlapping = with_address(with_address(ROUND_TRIP, 5, 3, error), 8, 1, error)
    for wrong in (overlapping, with_address(ROUND_TRIP, 9, 1, address(ROUND_TRIP, 0, 2))):
        with pytest.raises(VerificationError, match="differs from the plain step"):
            check(library, wrong, poison=False)


def test_a_missing_move_that_luck_hides_is_caught_by_poison(library: KernelLibrary) -> None:
    back = next(step for step in ROUND_TRIP.steps if isinstance(step, MoveStep) and step.destination.tier is Tier.FAST)
    wrong = replace(ROUND_TRIP, steps=tuple(step for step in ROUND_TRIP.steps if step is not back))
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
    plain = plain_program(GRAPH)
    died = {
        (step.kernel, offset): size
        for step, dead in zip(plain.steps, deaths(GRAPH, plain), strict=True)
        for _, offset, size in dead
        if isinstance(step, KernelStep)
    }
    offset, expected = 0, {}
    for tensor in GRAPH.movable:
        expected[tensor.live.stop - 1, offset] = tensor.size_bytes
        offset += tensor.allocated_bytes
    assert died == expected


@pytest.mark.parametrize(
    ("name", "trip", "moves"), [("act2", Trip(5, 6), MoveStep), ("hidden", Trip(2, 5, 3, 4), StartMoveStep)]
)
def test_a_moved_tensor_dies_where_it_left_once_it_was_copied_and_again_after_its_return(
    name: str, trip: Trip, moves: type
) -> None:
    moving, size = program(GRAPH, trips={name: trip}), GRAPH.by_name[name].size_bytes
    dead = list(zip(moving.steps, deaths(GRAPH, moving), strict=True))
    away, back = (step for step in moving.steps if isinstance(step, moves))
    copied = [places for step, places in dead if isinstance(step, MoveStep | WaitMoveStep)]
    assert copied == [[(Tier.FAST, away.source.offset, size)], [(Tier.SLOW, back.source.offset, size)]]
    assert not any(places for step, places in dead if isinstance(step, StartMoveStep)), "both ends are alive until then"
    last = GRAPH.by_name[name].live.stop - 1
    (places,) = (places for step, places in dead if isinstance(step, KernelStep) and step.kernel == last)
    assert (Tier.FAST, back.destination.offset, size) in places
