"""A plan depends on sizes and times, not on what tensors are called or in which units they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from claims import claimed_gap
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, random_case, with_engines

from autotm.check.plan import check_plan
from autotm.model.graph import Graph, Kernel, Operand
from autotm.model.limit import Limit
from autotm.model.links import Link, Links
from autotm.model.plan import Plan
from autotm.model.profile import Profile, Timing
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve

EXACT = SolveOptions(gap=0.0, time_limit_s=200.0)
OPTIMIZERS = ("static", "synchronous", "asynchronous")
FACTOR = 8
"""A power of two: products with it are exact."""


def small_case(seed: int) -> Case:
    """Whole allocation units, so that sizes and what they take scale alike."""
    case = with_engines(random_case(seed, kernels=7))
    tensors = tuple(replace(tensor, size_bytes=tensor.allocated_bytes) for tensor in case.graph.tensors)
    return replace(case, graph=replace(case.graph, tensors=tensors))


def plan_of(case: Case, optimizer: str, limit_bytes: int) -> Plan:
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(size_bytes=limit_bytes), EXACT)
    check_plan(case.graph, case.profile, case.links, plan)
    return plan


def renamed(case: Case) -> Case:
    """Names in another order than before, tensors listed the other way round."""
    count = len(case.graph.tensors)
    names = {tensor.name: f"x{count - number:03}" for number, tensor in enumerate(case.graph.tensors)}

    def operands(slots: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(slot, tensor=names[slot.tensor]) for slot in slots)

    def kernel(old: Kernel) -> Kernel:
        inputs, outputs, workspaces = map(operands, (old.inputs, old.outputs, old.workspaces))
        return replace(old, name=f"k {old.name}", inputs=inputs, outputs=outputs, workspaces=workspaces)

    tensors = tuple(
        replace(tensor, name=names[tensor.name], alias_of=tensor.alias_of and names[tensor.alias_of])
        for tensor in reversed(case.graph.tensors)
    )
    return replace(case, graph=_with(case.graph, tuple(map(kernel, case.graph.kernels)), tensors))


def _with(graph: Graph, kernels: tuple[Kernel, ...], tensors: tuple) -> Graph:
    return Graph(graph.network, graph.scale, graph.batch, kernels, tensors)


def _links(links: Links, bytes_factor: int, time_factor: int) -> Links:
    def scaled(link: Link) -> Link:
        return Link(link.destination, tuple((size * bytes_factor, ns * time_factor) for size, ns in link.points))

    beside = links.asynchronous
    assert beside is not None
    beside = replace(
        beside,
        to_fast=scaled(beside.to_fast),
        to_slow=scaled(beside.to_slow),
        call_us=beside.call_us * time_factor,
    )
    return replace(links, to_fast=scaled(links.to_fast), to_slow=scaled(links.to_slow), asynchronous=beside)


def larger(case: Case) -> Case:
    """Every size FACTOR times as large; copies of so much take what they took."""
    tensors = tuple(replace(tensor, size_bytes=FACTOR * tensor.size_bytes) for tensor in case.graph.tensors)
    graph = _with(case.graph, case.graph.kernels, tensors)
    return replace(case, graph=graph, links=_links(case.links, FACTOR, 1))


def slower(case: Case) -> Case:
    """Every time FACTOR times as long."""

    def timing(old: Timing) -> Timing:
        times = (old.min_ns, old.median_ns, old.lower_quartile_ns, old.upper_quartile_ns)
        return Timing(*(FACTOR * time for time in times), old.repeats)

    timings = {key: timing(old) for key, old in case.profile.timings.items()}
    profile = Profile(case.profile.graph_hash, timings, case.profile.provenance)
    return replace(case, profile=profile, links=_links(case.links, 1, FACTOR))


seeds, optimizers, parts = st.integers(0, 2**31 - 1), st.sampled_from(OPTIMIZERS), st.sampled_from((2, 4))


@given(seeds, optimizers, parts)
def test_neither_names_nor_units_of_memory_matter(seed: int, optimizer: str, parts: int) -> None:
    case = small_case(seed)
    limit_bytes = case.graph.peak_live_bytes // parts
    plan = plan_of(case, optimizer, limit_bytes)
    assert claimed_gap(plan) < 1e-6
    assert plan_of(renamed(case), optimizer, limit_bytes).objective_us == pytest.approx(plan.objective_us)
    large = plan_of(larger(case), optimizer, FACTOR * limit_bytes)
    assert large.objective_us == pytest.approx(plan.objective_us)
    assert claimed_gap(large) < 1e-6


@given(seeds, st.sampled_from(OPTIMIZERS[:2]), parts)
def test_units_of_time_do_not_matter(seed: int, optimizer: str, parts: int) -> None:
    """Windows of asynchronous moves are cut in whole nanoseconds, and so do not quite scale."""
    case = small_case(seed)
    limit_bytes = case.graph.peak_live_bytes // parts
    plan = plan_of(case, optimizer, limit_bytes)
    long = plan_of(slower(case), optimizer, limit_bytes)
    assert long.objective_us == pytest.approx(FACTOR * plan.objective_us)
    assert claimed_gap(long) < 1e-6


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_cases_depend_on_the_limit(optimizer: str) -> None:
    """Where every plan is as fast, nothing could go wrong."""
    case = small_case(0)
    found = [plan_of(case, optimizer, case.graph.peak_live_bytes // parts) for parts in (2, 4)]
    assert found[0].objective_us < found[1].objective_us
    assert optimizer == "static" or any(plan.moves for plan in found)
