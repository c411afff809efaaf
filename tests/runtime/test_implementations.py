"""Steps some of whose kernels are computed in another way, or run again: the same bits as the plain step's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import plain_steps
import pytest
import random_graphs
import small_step
import yaml
from tvm import relax

from autotm import zoo
from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.layout.compile import compile_program
from autotm.layout.packing import layout_of
from autotm.lower.lowering import lower_network
from autotm.model.files import hash_of
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Configuration, Graph, Initial, Role, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.plan import Plan, Status, Stay, repeats
from autotm.model.profile import Profile, Timing
from autotm.model.program import Program
from autotm.model.training import Sgd, Training
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.profiler import Case, cases, profile_kernels
from autotm.profile.store import KernelStore
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.verify import VerificationError, results, verified
from autotm.runtime.verify import plain_steps as arguments_of_plain_steps
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.zoo import Network, NetworkBuilder
from autotm.zoo.paper import densenet
from autotm.zoo.torch.random_numbers import COUNTER, Draws

MACHINE, LINKS = small_step.machine(), small_step.links()
QUICK = ProfileOptions(patience_s=0.05, min_repeats=3, max_repeats=3, kernel_s=0.0, rotation_bytes=1_000)
RUN = RunOptions(patience_s=0.05, min_steps=1, min_seconds=0.0, poison=True)


@dataclass(frozen=True)
class Step:
    """A compiled step, and the folder that its files are in."""

    graph: Graph
    library: KernelLibrary
    folder: Path


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Step:
    """Two convolutions with borders and a classifier, with all implementations."""
    net, folder = NetworkBuilder("two_ways", 4, 0.01), tmp_path_factory.mktemp("two_ways")
    x = net.input("images", (4, 20, 20, 3), Initial("normal"))
    x = net.conv(net.conv(x, 64, 3, padding=1), 96, 3, padding=1)
    network = net.softmax_cross_entropy(net.dense(net.global_mean(x), 10, relu=False))
    files = folder / "graph.json", folder / "kernels.so"
    graph = lower_network(network, "test", host_target(1), 1, *files, {}, objects, implementations="all")
    return Step(graph, KernelLibrary.load(files[1]), folder)


@pytest.fixture(scope="module")
def profile(step: Step) -> Profile:
    with KernelStore(step.folder / "kernels.sqlite") as store:
        return profile_kernels(step.graph, step.library, MACHINE, LINKS, store, QUICK, small_step.DEVICES)


def lean(graph: Graph) -> tuple[str, ...]:
    """The leanest implementation of each kernel."""
    return tuple(kernel.implementations[-1] for kernel in graph.kernels)


def planned(graph: Graph, implementations: tuple[str, ...]) -> Plan:
    """Everything in fast memory, but for the workspaces; by hand."""
    chosen = graph.computed_by(implementations)
    stays = sorted(
        (tensor.live.start, tensor.name, Tier.SLOW if "workspace" in tensor.name else Tier.FAST, tensor.live.stop)
        for tensor in chosen.movable
    )
    configurations = tuple(
        "".join("P" if "workspace" in operand.tensor else "D" for operand in kernel.operands)
        for kernel in chosen.kernels
    )
    return Plan(
        hash_of(graph), "by hand", Limit(0, 1), graph.peak_live_bytes, Counts.INTERMEDIATES,
        tuple(Stay(name, tier, start, end) for start, name, tier, end in stays), (), configurations,
        2_000.0, 1_500.0, Status.NOT_OPTIMIZED, 0.25, 0.5, implementations=implementations,
    )  # fmt: skip


def program_of(graph: Graph, plan: Plan) -> Program:
    program = compile_program(graph, plan, layout_of(graph, plan))
    check_program(graph, plan, program)
    return program


def test_both_ways_are_compiled_and_the_lean_one_takes_less(step: Step) -> None:
    both = [kernel for kernel in step.graph.kernels if kernel.alternatives]
    assert {"conv2d", "conv2d_data_gradient", "conv2d_weight_gradient"} <= {kernel.op for kernel in both}
    for kernel in both:
        other = kernel.computed_by("lean")
        assert other.identity != kernel.identity
        assert sum(w.size_bytes for w in other.workspaces) < sum(w.size_bytes for w in kernel.workspaces)
        assert {w.tensor for w in other.workspaces}.isdisjoint(w.tensor for w in kernel.workspaces)


def test_the_profile_has_every_implementation_in_its_configurations(step: Step, profile: Profile) -> None:
    for names in ((), lean(step.graph)):
        chosen = step.graph.computed_by(names)
        for kernel in chosen.kernels:
            assert profile.base_us(kernel) > 0
            assert all(profile.extra_us(chosen, kernel, tensor) >= 0 for tensor in chosen.slots_of(kernel))


def test_a_run_of_the_lean_ways_equals_its_own_plain_step(step: Step, profile: Profile) -> None:
    reference, rest = step.folder / "reference.json", (MACHINE, LINKS, profile, RUN, small_step.DEVICES)
    plans = [planned(step.graph, names) for names in ((), lean(step.graph))]
    default, other = (
        run(step.graph, step.library, program_of(step.graph, plan), plan, *rest, reference) for plan in plans
    )
    assert default.verified_steps == other.verified_steps == 2
    count = sum(bool(kernel.alternatives) for kernel in step.graph.kernels)
    assert default.implementations == {"default": len(step.graph.kernels)}
    assert other.implementations == {"default": len(step.graph.kernels) - count, "lean": count}
    assert other.pmem_alloc_size < default.pmem_alloc_size, "all workspaces are in slow memory"
    assert other.default_alloc_size == default.default_alloc_size == step.graph.peak_live_bytes
    assert len(list(step.folder.glob("reference*.json"))) == 2, "choices do not overwrite each other's reference"
    least = 0.0
    for kernel in step.graph.kernels:
        profiled = [profile.base_us(kernel.computed_by(name)) for name in kernel.implementations]
        least += min([*profiled, other.kernel_times_us[kernel.name]])
    assert other.oracle_time_us == pytest.approx(least), "the oracle takes the best of profile and run"


def test_both_ways_compute_the_same_but_for_rounding(step: Step) -> None:
    default, lean_ones = (step.graph.computed_by(names) for names in ((), lean(step.graph)))
    values = []
    for graph in (default, lean_ones):
        (_, after) = arguments_of_plain_steps(graph, step.library, MACHINE, 3, 1, small_step.DEVICES)
        values.append({name: after.value(name).copy() for name in results(graph)})
    for name, value in values[0].items():
        np.testing.assert_allclose(values[1][name], value, rtol=1e-4, atol=1e-6)


def priced(graph: Graph) -> Profile:
    """Every kernel takes 1 ms, a tenth longer in another than the default way, and 10 ms more a slow operand."""

    def timing(case: Case, config: Configuration) -> Timing:
        way_us = 1_000 if case.kernel.implementation == DEFAULT_IMPLEMENTATION else 1_100
        slow = sum(config[slots[0]] == "P" for slots in case.graph.slots_of(case.kernel).values())
        ns = 1_000 * (way_us + 10_000 * slow)
        return Timing(ns, ns, ns, ns, 3)

    timings = {(*case.key, c): timing(case, c) for case in cases(graph, "additive") for c in case.configurations}
    return Profile(hash_of(graph), timings, {})


def test_a_small_limit_forces_the_lean_way(step: Step) -> None:
    graph, prices = step.graph, priced(step.graph)
    small = graph.computed_by(lean(graph)).peak_live_bytes
    assert small < graph.peak_live_bytes
    chosen = {}
    for limit in (Limit(0, 1), Limit(size_bytes=small)):
        plan, layout = solve_and_pack(graph, prices, LINKS, "synchronous", limit, SolveOptions(gap=0.0))
        check_plan(graph, prices, LINKS, plan)
        program = compile_program(graph, plan, layout)
        check_program(graph, plan, program)
        record = run(graph, step.library, program, plan, MACHINE, LINKS, prices, RUN, small_step.DEVICES)
        assert record.verified_steps == 2
        chosen[limit] = record.implementations
    unlimited, tight = chosen.values()
    assert unlimited == {"default": len(graph.kernels)}, "the default way is faster"
    assert tight["lean"] > 0
    assert record.dram_alloc_size <= small


def test_a_program_of_other_implementations_than_its_plan_is_refused(step: Step) -> None:
    plan, other = planned(step.graph, lean(step.graph)), planned(step.graph, ())
    with pytest.raises(FaultError) as caught:
        check_program(step.graph, plan, program_of(step.graph, other))
    assert caught.value.fault is Fault.OTHER_PLAN


OPTIONS = SolveOptions(fast_operands_only=True, time_limit_s=5.0)
SIZES = yaml.safe_load((small_step.DEVICES.parent / "scales" / "tiny.yaml").read_text(encoding="utf-8"))["networks"]
SHALLOW = {"mlp"}
"""Convolutions and pools are in `dense_blocks`."""
NETWORKS = [pytest.param(name, marks=() if name in SHALLOW else pytest.mark.slow) for name in zoo.networks()]


def recomputed(graph: Graph, counts: Counts = Counts.INTERMEDIATES) -> tuple[Plan, Program]:
    """Checked, both of them."""
    step = counting(graph, counts)
    case = random_graphs.Case(step, small_step.profile(step), LINKS)
    plan, layout = solve_and_pack(step, case.profile, LINKS, "recompute", Limit(0, 1), OPTIONS)
    check_plan(step, case.profile, LINKS, plan, fast_operands_only=True)
    program = compile_program(step, plan, layout)
    check_program(step, plan, program)
    return plan, program


def lowered(network: Network, folder: Path, objects: Path) -> tuple[Graph, KernelLibrary]:
    files = folder / "graph.json", folder / "kernels.so"
    graph = lower_network(network, "tiny", host_target(1), 1, *files, {}, objects)
    return graph, KernelLibrary.load(folder / "kernels.so")


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> tuple[Graph, KernelLibrary]:
    return lowered(zoo.build("mlp", SIZES["mlp"]), tmp_path_factory.mktemp("mlp"), objects)


def dense_blocks() -> Network:
    """Two of a layer each: batch norm, concatenations and both pools, as in the deep networks."""
    return densenet("dense_blocks", 2, 32, (1, 1))


def attention() -> Network:
    """An encoder layer's: a softmax of products, layer norm, a residual connection."""
    net = NetworkBuilder("attention", 2, 0.01)
    x = net.input("x", (8, 32), Initial("normal"))
    queries, keys, values = (net.reshape(net.dense(x, 32, relu=False), (2, 4, 4, 8)) for _ in range(3))
    shares = net.softmax(net.product("bihd,bjhd->bhij", queries, keys))
    mixed = net.reshape(net.product("bhij,bjhd->bihd", shares, values), (8, 32))
    return net.softmax_cross_entropy(net.dense(net.layer_norm(net.add(mixed, x)), 10, relu=False))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("network", [*NETWORKS, dense_blocks, attention])
def test_every_network_equals_its_plain_step(
    network: str | Callable[[], Network], tmp_path: Path, objects: Path
) -> None:
    built = zoo.build(network, SIZES[network]) if isinstance(network, str) else network()
    graph, library = lowered(built, tmp_path, objects)
    plan, program = recomputed(graph)
    assert repeats(plan.calls)
    compared = verified(graph, library, program, plan.counts, MACHINE, LINKS, 1, 2, small_step.DEVICES)
    assert len(compared) > len(graph.kernels) / 20


def test_a_run_says_what_was_repeated(mlp: tuple[Graph, KernelLibrary]) -> None:
    graph, library = mlp
    for counts in Counts:
        plan, program = recomputed(graph, counts)
        profile = small_step.profile(counting(graph, counts))
        record = run(graph, library, program, plan, MACHINE, LINKS, profile, RUN, small_step.DEVICES)
        assert (record.verified_steps, record.verified_against) == (2, "plain step")
        again = [name for name in record.kernel_times_us if name.endswith(" again")]
        assert len(again) == len(repeats(plan.calls)) > 0
        share = sum(record.kernel_times_us[name] for name in again) / sum(record.kernel_times_us.values())
        assert record.repeated_share == pytest.approx(share)
        assert record.num_kernels == len(plan.calls)
        assert sum(record.implementations.values()) == len(graph.kernels)


def test_a_repeat_that_is_left_out_is_found(mlp: tuple[Graph, KernelLibrary]) -> None:
    graph, library = mlp
    plan, program = recomputed(graph)
    for number in repeats(plan.calls):
        steps = tuple(step for step in program.steps if getattr(step, "kernel", None) != number)
        assert len(steps) == len(program.steps) - 1
        wrong = replace(program, steps=steps)
        with pytest.raises(VerificationError):
            verified(graph, library, wrong, plan.counts, MACHINE, LINKS, 1, 2, small_step.DEVICES)


LAYERS, WIDTH = 5, 16


def dropping() -> Network:
    """Layers with dropout, whose draws are counted, and with running averages of what the layers make."""
    draws, builder = Draws(), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((WIDTH, WIDTH), "float32"))
    weights = [relax.Var(f"w{layer}", relax.TensorType((WIDTH, WIDTH), "float32")) for layer in range(LAYERS)]
    means = [relax.Var(f"mean{layer}", relax.TensorType((WIDTH,), "float32")) for layer in range(LAYERS)]
    op, news = relax.op, []
    with builder.function("main", [x, *weights, *means, draws.counter]):
        with builder.dataflow():
            value: relax.Expr = x
            for layer, weight in enumerate(weights):
                value = builder.emit(op.tanh(builder.emit(op.matmul(value, weight))))
                old = builder.emit(op.multiply(means[layer], relax.const(0.75, "float32")))
                news.append(builder.emit(op.add(old, builder.emit(op.mean(value, 0)))))
                kept = draws.at_least(builder, (WIDTH, WIDTH), 0.25)
                value = builder.emit(op.where(kept, value, relax.const(0.0, "float32")))
            loss = builder.emit(op.sum(builder.emit(op.multiply(value, value))))
            result = builder.emit_output(relax.Tuple([loss, *news, draws.next_counter(builder)]))
        builder.emit_func_output(result)
    normal = plain_steps.NORMAL
    states = {one.name_hint if hasattr(one, "name_hint") else one.name: normal for one in means}
    return Network(
        "dropping",
        1,
        builder.finalize(),
        {"x": normal},
        {f"w{layer}": Initial("normal", 0.3) for layer in range(LAYERS)},
        Training(Sgd(0.01)),
        {**states, COUNTER: Initial("integers", 2**30)},
    )


def test_draws_repeat_and_states_are_replaced_once(tmp_path: Path) -> None:
    compiled = plain_steps.compiled(dropping(), tmp_path)
    for counts in Counts:
        plan, program = recomputed(compiled.graph, counts)
        again = {plan.calls[number] for number in repeats(plan.calls)}
        assert again
        for index in again:
            kernel = compiled.graph.kernels[index]
            assert all(compiled.graph.by_name[one.tensor].role is Role.INTERMEDIATE for one in kernel.outputs)
            assert COUNTER not in {one.tensor for one in kernel.inputs}, "the next step's counter is there already"
        compared = verified(compiled.graph, compiled.library, program, counts, MACHINE, LINKS, 1, 3, small_step.DEVICES)
        assert f"{COUNTER}.new" in compared
