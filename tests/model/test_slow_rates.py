"""Rates of slow memory are what a profile's slow tensors added, over their bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_graphs import StepBuilder

from autotm.model.files import hash_of
from autotm.model.graph import Graph, OpClass, all_fast, configuration
from autotm.model.profile import Profile, SlowRates, Timing, slow_rates

BASE_NS, READ_NS_PER_BYTE, WRITE_NS_PER_BYTE = 1000, 2, 5


def graph_of() -> Graph:
    builder = StepBuilder()
    builder.argument("data", 100)
    builder.kernel(["data"], {"a": 1000}, {})
    builder.kernel(["a"], {"b": 500}, {"space": 70})
    graph = builder.graph()
    kernels = (graph.kernels[0], replace(graph.kernels[1], op_class=OpClass.MATMUL))
    return replace(graph, kernels=kernels)


def profile_of(graph: Graph) -> Profile:
    timings = {}
    for kernel in graph.kernels:
        timings[kernel.identity, kernel.implementation, all_fast(kernel)] = timing(BASE_NS)
        for tensor in graph.slots_of(kernel):
            size = graph.by_name[tensor].size_bytes
            rate = {"space": 100}.get(tensor, READ_NS_PER_BYTE if tensor in names(kernel.inputs) else WRITE_NS_PER_BYTE)
            key = (kernel.identity, kernel.implementation, configuration(graph, kernel, {tensor}))
            timings[key] = timing(BASE_NS + size * rate * (2 if kernel.op_class is OpClass.MATMUL else 1))
    return Profile(hash_of(graph), timings, {})


def names(operands: tuple[object, ...]) -> set[str]:
    return {operand.tensor for operand in operands}  # type: ignore[attr-defined]


def timing(ns: int) -> Timing:
    return Timing(ns, ns, ns, ns, 1)


def test_rates_are_those_of_the_class_or_of_all() -> None:
    graph = graph_of()
    rates = slow_rates(graph, profile_of(graph))
    assert rates[OpClass.MATMUL] == SlowRates(pytest.approx(0.004), pytest.approx(0.010)), "not the workspace's rate"
    assert rates[OpClass.ELEMENTWISE].write_us_per_byte == pytest.approx(0.005)
    assert rates[OpClass.ELEMENTWISE].read_us_per_byte == pytest.approx(0.004), "it reads nothing movable: all classes'"
    assert rates[OpClass.WINDOW].write_us_per_byte == pytest.approx(0.005), "two thirds of all written bytes cost that"
    assert rates[OpClass.MATMUL].extra_us(1000, 100) == pytest.approx(5.0)


def test_noise_makes_no_rate() -> None:
    builder = StepBuilder()
    builder.argument("data", 100)
    for index in range(9):
        builder.kernel(["data"], {f"t{index}": 1000}, {})
    graph = builder.graph()
    noise_ns = [-3000, -2000, -900, -1, 0, 20, 700, 2500, 90_000]
    timings = {}
    for index, (kernel, extra_ns) in enumerate(zip(graph.kernels, noise_ns, strict=True)):
        timings[kernel.identity, kernel.implementation, all_fast(kernel)] = timing(100_000)
        key = (kernel.identity, kernel.implementation, configuration(graph, kernel, {f"t{index}"}))
        timings[key] = timing(100_000 + extra_ns)
    assert slow_rates(graph, Profile(hash_of(graph), timings, {}))[OpClass.ELEMENTWISE] == SlowRates(0.0, 0.0)


def test_a_profile_without_slow_tensors_charges_nothing() -> None:
    graph = graph_of()
    fast = {key: value for key, value in profile_of(graph).timings.items() if "P" not in key[2]}
    assert set(slow_rates(graph, Profile(hash_of(graph), fast, {})).values()) == {SlowRates(0.0, 0.0)}
