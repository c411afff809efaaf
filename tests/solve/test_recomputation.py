"""What to compute again: traces equal the steps that they stand for, plans those of brute force, bounds hold."""

from __future__ import annotations

import itertools
import math
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from random_graphs import make_links, timing

from autotm.model.errors import InfeasibleLimitError
from autotm.model.files import hash_of
from autotm.model.graph import CountedGraph, Graph, Kernel, OpClass, Operand, Role, Tensor, Tier, all_fast
from autotm.model.limit import Limit
from autotm.model.links import AsynchronousLinks, Contention, Link, Links
from autotm.model.profile import Profile
from autotm.solve import mixing
from autotm.solve.absence import least_added_us
from autotm.solve.mixing import Moving, repeats_beside_moves
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from autotm.solve.recomputation import AGAIN, RepeatsProgram, StepArrays, recomputed, repeated

SEEDS = range(12)


def training_step(seed, layers=6):
    """Return a step with skips and workspaces, times of its kernels, and where its backward pass begins.

    Kernel i of the forward pass reads what came before it, and has one output or two; its gradient reads some of
    these.
    """
    draw = random.Random(seed)
    kernels: list[Kernel] = []
    sizes, held = {"x": 64 * draw.randint(1, 4)}, {"x"}

    def add(name, reads, writes):
        for written in writes:
            sizes[written] = 64 * draw.randint(1, 20)
        taken = ()
        if draw.random() < 0.3:
            sizes[f"{name}.w"] = 64 * draw.randint(1, 5)
            taken = (slot(f"{name}.w"),)
        kernels.append(Kernel(name, name, name, "f", OpClass.ELEMENTWISE, 0, slots(reads), slots(writes), taken))

    def slot(name):
        return Operand(name, (sizes[name],), "uint8")

    def slots(names):
        return tuple(map(slot, names))

    made = ["x"]
    for layer in range(layers):
        skip = [draw.choice(made)] if draw.random() < 0.4 else []
        writes = [f"a{layer}", *([f"b{layer}"] if draw.random() < 0.3 else [])]
        add(f"f{layer}", dict.fromkeys([made[-1], *skip]), writes)
        made.append(f"a{layer}")
    turn, gradient = len(kernels), made[-1]
    for layer in reversed(range(layers)):
        kernel = kernels[layer]
        known = [operand.tensor for operand in (*kernel.inputs, *kernel.outputs) if draw.random() < 0.6]
        add(f"g{layer}", dict.fromkeys([gradient, *known]), [f"d{layer}"])
        gradient = f"d{layer}"
    add("end", [gradient], [])
    return CountedGraph(graph_of(kernels, sizes, held)), [draw.uniform(1, 10) for _ in kernels], turn


def graph_of(kernels, sizes, held):
    readers = {name: [] for name in sizes}
    producer, workspaces = {}, set()
    for place, kernel in enumerate(kernels):
        for operand in kernel.inputs:
            readers[operand.tensor].append(place)
        producer |= {operand.tensor: place for operand in (*kernel.outputs, *kernel.workspaces)}
        workspaces |= {operand.tensor for operand in kernel.workspaces}

    def role(name):
        return Role.INPUT if name in held else Role.WORKSPACE if name in workspaces else Role.INTERMEDIATE

    return Graph(
        "step", "tiny", 1, tuple(kernels),
        tuple(
            Tensor(
                name, role(name), (size,), "uint8", size, producer.get(name), tuple(readers[name]),
                held=(0, len(kernels)) if name in held else None,
            )
            for name, size in sizes.items()
        ),
    )  # fmt: skip


def droppable(step):
    return [own for own in step.droppable if any(reader >= step.turn for reader in readers_of(step, own))]


def readers_of(step, own):
    return step.graph.by_name[step.names[own]].readers


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trace_is_the_step_that_it_stands_for(seed):
    graph, costs_us, turn = training_step(seed)
    step, draw = StepArrays(graph, costs_us, turn, range(turn)), random.Random(seed)
    for _ in range(20):
        dropped = frozenset(own for own in step.droppable if draw.random() < 0.5)
        trace = step.trace(dropped, 0)
        again = repeated(graph, step.repeats_of(trace))
        assert CountedGraph(again).peak_live_bytes == trace.peak_bytes
        assert len(again.kernels) == len(graph.kernels) + len(trace.repeats)
        times = dict(zip((kernel.name for kernel in graph.kernels), costs_us, strict=True))
        extra = [times[kernel.name.removesuffix(AGAIN)] for kernel in again.kernels if kernel.name.endswith(AGAIN)]
        assert sum(extra) == pytest.approx(trace.extra_us)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_kernel_reads_what_was_computed_for_it(seed):
    """In whatever order: each value names what it was computed from, and the gradients at the end are the same."""
    graph, costs_us, turn = training_step(seed)
    step, draw = StepArrays(graph, costs_us, turn, range(turn)), random.Random(seed)
    dropped = frozenset(own for own in step.droppable if draw.random() < 0.6)
    again = repeated(graph, step.repeats_of(step.trace(dropped, 0)))

    def values(of):
        known = {"x": "x"}
        for kernel in of.kernels:
            read = [known[operand.tensor] for operand in kernel.inputs]
            name = kernel.name.removesuffix(AGAIN)
            known |= {one.tensor: f"{name}{place}({','.join(read)})" for place, one in enumerate(kernel.outputs)}
        return known

    plain, other = values(graph), values(again)
    assert all(value == plain[name.removesuffix(AGAIN)] for name, value in other.items())


def by_force(step, limit_bytes):
    """Return the least time of repeats of any plan that keeps the limit; None if there is none."""
    names = step.droppable
    traces = (
        step.trace(frozenset(itertools.compress(names, chosen)), limit_bytes)
        for chosen in itertools.product((0, 1), repeat=len(names))
    )
    return min((trace.extra_us for trace in traces if not trace.excess_bytes), default=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_those_of_brute_force_and_no_bound_is_above_them(seed):
    graph, costs_us, turn = training_step(seed)
    step = StepArrays(graph, costs_us, turn, range(turn))
    for share in (0.95, 0.8, 0.65):
        limit_bytes = int(share * graph.peak_live_bytes)
        best = by_force(step, limit_bytes)
        if best is None:
            assert found_in(graph, costs_us, turn, range(turn), limit_bytes) is None
            continue
        found = recomputed(graph, costs_us, turn, range(turn), limit_bytes, time_limit_s=60.0)
        assert found.extra_us == pytest.approx(best)
        assert found.peak_bytes <= limit_bytes
        assert RepeatsProgram(step, limit_bytes).solved(0, 10.0)[0] <= best * (1 + 1e-6)
        assert 0 < least_added_us(graph, costs_us, range(turn), limit_bytes, None) <= best * (1 + 1e-9)
        assert 0 <= found.bound_us <= found.extra_us


def links_with(contention, us_per_kb, call_us=0.0):
    """Return links with engines that copy so fast, and take so much from kernels of every class."""
    link = {tier: Link(tier, ((64, round(64 * us_per_kb)), (6400, round(6400 * us_per_kb)))) for tier in Tier}
    beside = dict.fromkeys(OpClass, Contention(contention, 0.0))
    engines = AsynchronousLinks(link[Tier.FAST], link[Tier.SLOW], beside, beside, call_us)
    return Links(link[Tier.FAST], link[Tier.SLOW], 1e12, 1.0, engines)


def profile_of(graph, costs_us):
    timings = {
        (kernel.identity, kernel.implementation, all_fast(kernel)): timing(round(1e3 * cost_us))
        for kernel, cost_us in zip(graph.kernels, costs_us, strict=True)
    }
    return Profile(hash_of(graph), timings, {})


def placed_us(graph, profile, links, limit_bytes, repeats):
    """Return the time of a step with repeats in which the solver moves the rest; infinite where it cannot."""
    again = CountedGraph(repeated(graph, repeats))
    options = SolveOptions(gap=1e-3, fast_operands_only=True)
    with suppress(InfeasibleLimitError):
        limit = Limit(size_bytes=limit_bytes)
        return solve(
            again, replace(profile, graph_hash=hash_of(again)), links, "asynchronous", limit, options
        ).objective_us
    return math.inf


@pytest.mark.parametrize("periods", [1000, 12])
def test_steps_that_move_and_compute_again_are_faster_than_those_that_do_either(periods, monkeypatch):
    """By `again` alone, by moves alone, and by both, over limits that both alone can keep.

    With few periods some are of several kernels.
    """
    monkeypatch.setattr(mixing, "_PERIODS", periods)
    sums_us = [0.0, 0.0, 0.0]
    for seed in SEEDS:
        graph, costs_us, turn = training_step(seed, layers=10)
        costs_us = [round(cost_us, 3) for cost_us in costs_us]
        profile, links = profile_of(graph, costs_us), links_with(0.5, 4.0)
        limit_bytes, kernels = int(0.7 * graph.peak_live_bytes), range(turn)
        alone = found_in(graph, costs_us, turn, kernels, limit_bytes)
        moving = Moving(profile, links, 0.7, 1 << 30, {})
        both = repeats_beside_moves(graph, moving, turn, kernels, limit_bytes, time_limit_s=60.0)
        given = graph, profile, links, limit_bytes
        found_us = [placed_us(*given, one.repeats if one else ()) for one in (alone, None, both)]
        if alone is None or math.isinf(max(found_us)):
            continue
        added_us = [us - sum(costs_us) for us in found_us]
        sums_us = [total + us for total, us in zip(sums_us, added_us, strict=True)]
    again_us, moves_us, both_us = sums_us
    assert 0 < both_us < 0.9 * min(again_us, moves_us)


def test_what_runs_again_beside_moves_depends_on_what_they_cost():
    """Of a chain every second kernel takes a tenth of the time; 64 bytes take 0.64 us to copy, of 10 or 1."""
    layers = 8
    graph, turn = chain(layers), layers
    costs_us = [10.0 if index % 2 else 1.0 for index in range(len(graph.kernels))]
    profile, limit_bytes = profile_of(graph, costs_us), graph.peak_live_bytes * 3 // 4 // 64 * 64

    def again(links, host_bytes=1 << 30, states=None):
        moving = Moving(profile, links, 0.7, host_bytes, states or {})
        found = repeats_beside_moves(graph, moving, turn, range(turn), limit_bytes, time_limit_s=60.0)
        return {one.kernel for one in found.repeats}

    assert again(links_with(0.0, 10.0)) == set()
    assert again(links_with(0.0, 10.0), host_bytes=0)
    # A call takes longer than the quick kernels, and less than the others.
    found = again(links_with(0.0, 10.0, call_us=2.0))
    assert found
    assert all(kernel % 2 == 0 for kernel in found)
    # The engine that brings tensors back has no time for them beside an optimizer's state.
    slow, states = links_with(0.0, 100.0), dict.fromkeys(range(turn, turn + 6), 64)
    assert len(again(slow)) < len(again(slow, states=states))


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_that_moves_and_computes_again_is_below_the_bound(seed):
    """Drops are drawn; of the tensors that are left the solver moves what it must."""
    draw, (graph, costs_us, turn) = random.Random(seed), training_step(seed, layers=8)
    costs_us, blocking = [round(cost_us, 3) for cost_us in costs_us], make_links(0.2, 0.2, tiny=True)
    beside = dict.fromkeys(OpClass, Contention(0.1 * (seed % 3), 0.2))
    links = replace(
        blocking, asynchronous=AsynchronousLinks(blocking.to_fast, blocking.to_slow, beside, beside, call_us=0.01)
    )
    step, limit_bytes = StepArrays(graph, costs_us, turn, range(turn)), graph.peak_live_bytes * 3 // 256 * 64
    added_us = []
    profile = profile_of(graph, costs_us)
    for share in (0.0, 0.0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6):
        dropped = frozenset(own for own in step.droppable if draw.random() < share)
        repeats = step.repeats_of(step.trace(dropped, 0))
        added_us.append(placed_us(graph, profile, links, limit_bytes, repeats) - sum(costs_us))
    assert 0 < least_added_us(graph, costs_us, range(turn), limit_bytes, links) <= min(added_us)


def test_what_must_be_copied_takes_the_time_that_kernels_leave():
    """Of 128 bytes 64 must be absent: 6 us each way, of which 4 overlap no kernel; with both ways half goes by each."""
    first, second = (Operand(name, (64,), "uint8") for name in ("a", "b"))
    kernels = [
        Kernel("make", "make", "make", "f", OpClass.ELEMENTWISE, 0, (), (first,)),
        Kernel("other", "other", "other", "f", OpClass.ELEMENTWISE, 0, (), (second,)),
        Kernel("end", "end", "end", "f", OpClass.ELEMENTWISE, 0, (first,), ()),
    ]
    graph = CountedGraph(graph_of(kernels, {"a": 64, "b": 64}, set()))
    link = {tier: Link(tier, ((64, 6000), (128, 12000))) for tier in Tier}
    free = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    engines = AsynchronousLinks(link[Tier.FAST], link[Tier.SLOW], free, free, call_us=0.0)
    links = Links(link[Tier.FAST], link[Tier.SLOW], 1e12, 1.0, engines)
    for allowed, again, expected_us in ((links, (), 4.0), (links, (0,), 1.0), (None, (0,), 2.0), (None, (), 0.0)):
        added_us = least_added_us(graph, [2.0, 2.0, 2.0], again, 64, allowed)
        assert added_us == pytest.approx(expected_us, abs=1e-6)


def found_in(*step):
    """Return a plan; None if there is none, or none was found."""
    try:
        return recomputed(*step, time_limit_s=60.0)
    except InfeasibleLimitError:
        return None


def test_a_limit_is_refused_that_no_plan_keeps():
    graph, costs_us, turn = training_step(3)
    with pytest.raises(InfeasibleLimitError, match="no plan keeps 64 bytes"):
        recomputed(graph, costs_us, turn, range(turn), 64)


def test_nothing_runs_again_where_all_fits():
    graph, costs_us, turn = training_step(1)
    found = recomputed(graph, costs_us, turn, range(turn), graph.peak_live_bytes)
    assert (found.repeats, found.extra_us, found.bound_us) == ((), 0.0, 0.0)


def test_kernels_that_may_not_run_again_do_not():
    others = 0
    for seed in SEEDS:
        graph, costs_us, turn = training_step(seed, layers=10)
        limit_bytes = int(0.95 * graph.peak_live_bytes)
        free = found_in(graph, costs_us, turn, range(turn), limit_bytes)
        if free is None:
            continue
        barred = free.repeats[0].kernel
        held = found_in(graph, costs_us, turn, {*range(turn)} - {barred}, limit_bytes)
        if held is not None:
            others += 1
            assert held.extra_us >= free.extra_us
            assert barred not in {one.kernel for one in held.repeats}
    assert others


def chain(layers):
    """Return a chain whose gradients read all that the forward pass made, each tensor as large as any other."""
    sizes = {"x": 64, **{f"{kind}{layer}": 64 for kind in "ad" for layer in range(layers)}}

    def kernel(name, reads, writes):
        slots = [tuple(Operand(own, (64,), "uint8") for own in some) for some in (reads, writes)]
        return Kernel(name, name, name, "f", OpClass.ELEMENTWISE, 0, *slots)

    made = ["x", *(f"a{layer}" for layer in range(layers))]
    forward = [kernel(f"f{layer}", [made[layer]], [made[layer + 1]]) for layer in range(layers)]
    gradients = [made[-1], *(f"d{layer}" for layer in reversed(range(layers)))]
    backward = [
        kernel(f"g{layer}", [gradients[place], made[layer]], [gradients[place + 1]])
        for place, layer in enumerate(reversed(range(layers)))
    ]
    return graph_of([*forward, *backward, kernel("end", [gradients[-1]], [])], sizes, {"x"})


def test_long_chains_need_about_twice_the_root_of_their_length():
    """Chen et al., 2016: segments as long as there are of them; each kernel at most twice."""
    layers = 100
    graph = chain(layers)
    found = recomputed(graph, [1.0] * len(graph.kernels), layers, range(layers), 64 * 24)
    assert found is not None
    assert found.extra_us <= layers
    assert graph.peak_live_bytes >= 64 * layers


def test_the_clock_ends_no_search_that_has_no_plan_yet():
    layers, limit_bytes = 60, 64 * 24
    found = recomputed(chain(layers), [1.0] * (2 * layers + 1), layers, range(layers), limit_bytes, time_limit_s=1e-6)
    assert found is not None
    assert found.peak_bytes <= limit_bytes
