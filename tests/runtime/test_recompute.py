"""Steps some of whose kernels run again compute what the plain step does, bit for bit, for every network of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import plain_steps
import pytest
import random_graphs
import small_step
import yaml
from tvm import relax

from autotm import zoo
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.layout.compile import compile_program
from autotm.lower.lowering import lower_network
from autotm.model.graph import Graph, Initial, Role
from autotm.model.limit import Counts, Limit, counting
from autotm.model.plan import Plan, repeats
from autotm.model.program import Program
from autotm.model.training import Sgd, Training
from autotm.runtime.run import run
from autotm.runtime.step_times import RunOptions
from autotm.runtime.verify import VerificationError, verified
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.zoo import Network, NetworkBuilder
from autotm.zoo.paper import densenet
from autotm.zoo.torch.random_numbers import COUNTER, Draws

MACHINE, LINKS = small_step.machine(), small_step.links()
OPTIONS = SolveOptions(fast_operands_only=True, time_limit_s=5.0)
QUICK = RunOptions(patience_s=0.05, min_steps=1, min_seconds=0.0, poison=True)
SIZES = yaml.safe_load((small_step.DEVICES.parent / "scales" / "tiny.yaml").read_text(encoding="utf-8"))["networks"]
SHALLOW = {"mlp"}
"""Convolutions and pools are in `dense_blocks`."""
NETWORKS = [pytest.param(name, marks=() if name in SHALLOW else pytest.mark.slow) for name in zoo.networks()]


def planned(graph: Graph, counts: Counts = Counts.INTERMEDIATES) -> tuple[Plan, Program]:
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
    plan, program = planned(graph)
    assert repeats(plan.calls)
    compared = verified(graph, library, program, plan.counts, MACHINE, LINKS, 1, 2, small_step.DEVICES)
    assert len(compared) > len(graph.kernels) / 20


def test_a_run_says_what_was_repeated(mlp: tuple[Graph, KernelLibrary]) -> None:
    graph, library = mlp
    for counts in Counts:
        plan, program = planned(graph, counts)
        profile = small_step.profile(counting(graph, counts))
        record = run(graph, library, program, plan, MACHINE, LINKS, profile, QUICK, small_step.DEVICES)
        assert (record.verified_steps, record.verified_against) == (2, "plain step")
        again = [name for name in record.kernel_times_us if name.endswith(" again")]
        assert len(again) == len(repeats(plan.calls)) > 0
        share = sum(record.kernel_times_us[name] for name in again) / sum(record.kernel_times_us.values())
        assert record.repeated_share == pytest.approx(share)
        assert record.num_kernels == len(plan.calls)
        assert sum(record.implementations.values()) == len(graph.kernels)


def test_a_repeat_that_is_left_out_is_found(mlp: tuple[Graph, KernelLibrary]) -> None:
    graph, library = mlp
    plan, program = planned(graph)
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
    made = plain_steps.compiled(dropping(), tmp_path)
    for counts in Counts:
        plan, program = planned(made.graph, counts)
        again = {plan.calls[number] for number in repeats(plan.calls)}
        assert again
        for index in again:
            kernel = made.graph.kernels[index]
            assert all(made.graph.by_name[one.tensor].role is Role.INTERMEDIATE for one in kernel.outputs)
            assert COUNTER not in {one.tensor for one in kernel.inputs}, "the next step's counter is there already"
        compared = verified(made.graph, made.library, program, counts, MACHINE, LINKS, 1, 3, small_step.DEVICES)
        assert f"{COUNTER}.new" in compared
