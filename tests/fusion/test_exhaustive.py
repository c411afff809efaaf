"""The best grouping of a step's operators: what is searched, priced and measured."""

from __future__ import annotations

import dataclasses
import importlib.util
from types import SimpleNamespace

import pytest
import small_step
from tiny_study import CONFIG as SHIPPED

from autotm.fusion import exhaustive, variants
from autotm.fusion.dataflow import Grouping
from autotm.fusion.decisions import path_of
from autotm.fusion.partitions import Partition, Precedence
from autotm.fusion.pricing import KernelTimes
from autotm.fusion.variants import Schedules, Workbench, WrongResultError
from autotm.kernels.compiler import KernelCompiler, Request, function_hash
from autotm.kernels.target import machine_target
from autotm.model.config import FusionConfig
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import read_yaml
from autotm.model.fusion import Decision, FusionOptimum, Kind
from autotm.model.graph import Initial
from autotm.profile import profiler
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.store import KernelStore
from autotm.runtime.step_times import RunOptions
from autotm.stages.context import Context
from autotm.stages.fusion import fusion_graph_stage
from autotm.study.setup import load_study
from autotm.zoo.builder import NetworkBuilder

CONFIG = FusionConfig(best=6, random=2, copies=2, step_s=0.0)
PROFILE = ProfileOptions(min_repeats=3, max_repeats=3, rotation_bytes=1)
RUN = RunOptions(min_steps=3, min_seconds=0.0, patience_s=0.0)


def mlp():
    net = NetworkBuilder("mlp", 8, 0.01)
    x = net.input("data", (8, 32), Initial("normal"))
    for _ in range(3):
        x = net.dense(x, 32)
    return net.softmax_cross_entropy(net.dense(x, 4, relu=False))


HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed here")
def test_blocks_without_pytorch_are_refused_with_the_remedy(tmp_path):
    context = Context(small_step.machine(threads=1), small_step.DEVICES, 20)
    study = load_study(read_yaml(SHIPPED, "study") | {"scale": "tiny"}, SHIPPED, SHIPPED.parent, tmp_path)
    name = "llama_block"
    with pytest.raises(BadInputError, match="torch is not installed here; `make figures/fusion` runs where it is"):
        fusion_graph_stage(context, study.network(name), study.paths(name), {"training": tmp_path / "graph.pkl"})


@pytest.mark.parametrize(
    ("name", "message"), [("bert_blok", "did you mean 'bert_block'"), ("mnits", "unknown function")]
)
def test_networks_that_are_nowhere_are_named(name, message, tmp_path):
    raw = read_yaml(SHIPPED, "study") | {"fusion": {"held_out": [name]}}
    with pytest.raises(BadInputError, match=rf"config.yaml: fusion: .*{message}"):
        load_study(raw, SHIPPED, SHIPPED.parent, tmp_path)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    return Workbench(mlp(), "tiny", small_step.machine(threads=1), small_step.DEVICES, folder)


def optimum(bench, store, config=CONFIG):
    return exhaustive.optimum(bench, store, config, PROFILE, RUN)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "fusion.sqlite"


@pytest.fixture(scope="module")
def found(bench, path) -> FusionOptimum:
    with KernelStore(path) as store:
        return optimum(bench, store)


def regions_of(bench):
    return exhaustive._regions(bench, Precedence([node.reads for node in bench.dataflow.nodes]), 1000)


def test_the_cheapest_are_measured_beside_others_and_all_are_right(found):
    assert [one.kind for one in found.groupings] == [
        *[Kind.CHEAPEST] * 6, *[Kind.DEFAULT] * 2, Kind.UNFUSED, *[Kind.RANDOM] * 2,
    ]  # fmt: skip
    assert all(one.times.difference <= 1 for one in found.groupings)
    sums = [one.sum_s for one in found.groupings[:6]]
    assert sums == pytest.approx(sorted(sums), rel=1e-9)  # Equal sums of the same numbers in another order.
    assert sums[0] <= found.default_sum_s * (1 + 1e-9)
    assert found.groupings[8].kernels == found.operators
    ratios = [one.times.ratio for one in found.groupings if one.kind is not Kind.DEFAULT]
    assert found.groupings[found.best].kind is not Kind.DEFAULT
    assert found.groupings[found.best].times.ratio == min(ratios)
    assert found.best_times.ratio > 0


def test_the_best_is_no_copy_of_the_default(found):
    first = found.groupings[0]
    slow, fast = (dataclasses.replace(first.times, ratio=ratio) for ratio in (1.1, 0.5))
    copy = dataclasses.replace(first, kind=Kind.DEFAULT, times=fast)
    assert exhaustive._fastest([copy, dataclasses.replace(first, times=slow), copy]) == 1
    assert exhaustive._fastest([copy]) == -1


def test_copies_of_the_default_are_its_kernels(found):
    copies = [one for one in found.groupings if one.kind is Kind.DEFAULT]
    assert {one.kernels for one in copies} == {found.default_kernels}
    assert {one.sum_s for one in copies} == {found.default_sum_s}


def test_regions_that_are_alike_are_searched_once_and_decided_alike(bench, found):
    assert sum(region.alike > 1 for region in found.regions) >= 1
    assert not any(region.failure for region in found.regions)
    flow = bench.dataflow
    inner = [one for one in regions_of(bench) if len(one.alike) > 1]
    assert {len(one.alike) for one in inner} <= {2, 3}
    for one in inner:
        names = [[flow.nodes[place].name.partition(".")[0] for place in region.nodes] for region in one.alike]
        assert all(own == names[0] for own in names)


def test_groups_that_are_alike_have_one_kernel(bench, path):
    """What is searched for one region holds for those that are alike: the same code, so the same time."""
    flow = bench.dataflow
    alike = [one for one in regions_of(bench) if len(one.alike) > 1]
    with KernelStore(path) as store:
        times = KernelTimes(bench, store, PROFILE)
        groups = [
            flow.computed_apart(tuple(region.nodes[own.first.nodes.index(node)] for node in group))
            for own in alike
            for group in own.groups
            for region in own.alike
        ]
        times.add(exhaustive._computable(bench, groups))
    known = sum(flow.computed_apart(group) in times for own in alike for group in own.groups)
    assert len(times) == known


def test_decisions_of_a_grouping_ask_for_it(bench, found):
    best = found.groupings[0]
    requested = {path_of(bench.dataflow, text): Decision(own) for text, own in best.decisions.items()}
    resolved = bench.resolved(requested)
    assert not resolved.changed
    assert len(bench.dataflow.live(resolved.grouping)) - best.kernels == sum(
        node.function is None for node in bench.dataflow.nodes
    )


def test_kernels_that_were_timed_are_not_timed_again(bench, path, found, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("timed again")

    monkeypatch.setattr(profiler, "_time_all", refuse)
    with KernelStore(path) as store:
        again = optimum(bench, store)
    assert [one.sum_s for one in again.groupings] == [one.sum_s for one in found.groupings]


def test_a_variant_that_cannot_be_compiled_has_its_reason(tmp_path, monkeypatch):
    bench = Workbench(mlp(), "tiny", small_step.machine(threads=1), small_step.DEVICES, tmp_path)
    default, unfused = bench.dataflow.default, Grouping.of([place] for place in range(len(bench.dataflow.nodes)))
    bench.compiled(default)

    def fail(*_):
        raise RuntimeError("no registers left\nBacktrace")

    monkeypatch.setattr(Request, "scheduled", fail)
    variant, error = bench.compiled_each([default, unfused])
    assert variant.grouping is default
    assert str(error) == "network mlp: a kernel cannot be compiled: no registers left"
    with pytest.raises(AutotmError, match="no registers left"):
        bench.compiled_all([default, unfused])


@pytest.mark.usefixtures("found")
def test_schedules_are_tried_in_several_processes_unless_a_kernel_tells(bench, monkeypatch):
    flow, target = bench.dataflow, machine_target(bench.machine)
    groups = [flow.computed_apart(group) for own in regions_of(bench) for group in own.groups if len(group) > 1]
    groups.append(flow.computed_apart(flow.operators))
    alone, together = Schedules(flow, target, 1), Schedules(flow, target, 1)
    scheduled = [group for group in groups if alone(group)]
    assert 0 < len(scheduled) < len(groups)
    assert together.among(groups) == scheduled

    def refuse(*_):
        pytest.fail("tried again")

    monkeypatch.setattr(variants, "has_schedule", refuse)
    assert together.among(groups) == scheduled
    assert Schedules(flow, target, 1, bench.compiler.kinds()).among(scheduled) == scheduled


def test_groups_that_cannot_be_compiled_are_left_out(bench, path, found, monkeypatch):
    flow = bench.dataflow
    default = {function_hash(flow.primitive(live)) for live in exhaustive._kernels(flow, flow.default)}
    groups = [flow.computed_apart(group) for own in regions_of(bench) for group in own.groups]
    shared = [group for group in groups if len(group.nodes) > 1 and bench.has_schedule(group)]
    broken = next(group for group in shared if function_hash(flow.primitive(group)) not in default)
    symbol, missing = function_hash(flow.primitive(broken)), KernelCompiler.missing

    def no_longer_made(self, keys, requests):
        asked = zip(keys, requests, strict=True)
        lost = {key: request for key, request in asked if function_hash(request.func) == symbol}
        return lost | missing(self, keys, requests)

    def fail(*_):
        raise RuntimeError("no registers left\nBacktrace")

    monkeypatch.setattr(KernelCompiler, "missing", no_longer_made)
    monkeypatch.setattr(Request, "scheduled", fail)
    monkeypatch.setattr(bench, "compiled_all", lambda several: [refuse_broken(one, flow, symbol) for one in several])
    monkeypatch.setattr(bench, "compared", lambda variants, _: [WrongResultError("not compared")] * len(variants))
    with KernelStore(path) as store:
        left = optimum(bench, store)
    names = ", ".join(flow.nodes[place].name for place in broken.nodes)
    assert f"{names}: no registers left" in left.failures
    assert sum(region.groups for region in left.regions) < sum(region.groups for region in found.regions)


def refuse_broken(grouping, flow, symbol):
    """Stand for a variant, which no kernel that cannot be compiled is in."""
    kernels = [*exhaustive._kernels(flow, grouping)]
    assert symbol not in {function_hash(flow.primitive(live)) for live in kernels}
    return SimpleNamespace(graph=SimpleNamespace(kernels=kernels, peak_live_bytes=0))


def test_regions_with_too_many_groups_keep_the_kernels_of_tvm(bench, path):
    with KernelStore(path) as store:
        left = optimum(bench, store, CONFIG.model_copy(update={"max_groups": 1}))
    assert all("groups, of at most 1 that are compiled" in region.failure for region in left.regions)
    cheapest = [one for one in left.groupings if one.kind is Kind.CHEAPEST]
    assert [one.sum_s for one in cheapest] == [left.default_sum_s]


def test_groupings_differ(found):
    assert len({tuple(sorted(one.decisions.items())) for one in found.groupings[:6]}) == 6


def test_the_default_is_a_candidate_where_no_combination_of_regions_is_computable(bench, path, monkeypatch):
    monkeypatch.setattr(exhaustive, "_is_acyclic", lambda *_: False)
    with KernelStore(path) as store:
        left = optimum(bench, store)
    cheapest = [one for one in left.groupings if one.kind is Kind.CHEAPEST]
    assert [(one.sum_s, one.kernels) for one in cheapest] == [(left.default_sum_s, left.default_kernels)]


def test_combinations_of_regions_are_given_up_after_many(bench, monkeypatch):
    asked = []
    monkeypatch.setattr(exhaustive, "_MOST_COMBINATIONS", 5)
    monkeypatch.setattr(exhaustive, "_is_acyclic", lambda _, grouping: asked.append(grouping))
    searched = regions_of(bench)
    for region in searched:
        region.partitions = [Partition(1.0, tuple((node,) for node in region.first.nodes))] * 3
    assert exhaustive._cheapest(bench.dataflow, searched, 100) == [bench.dataflow.default]
    assert len(asked) == 5
