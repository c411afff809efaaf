"""Policies in use: what experts say, and the pass that fuses a step by one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import small_step
from pydantic import TypeAdapter
from tiny_study import CONFIG as SHIPPED

from autotm.fusion.decisions import executed
from autotm.fusion.features import Features
from autotm.fusion.policy import DONT_CARE, Answers, LearnedFuseOps, grouping
from autotm.fusion.variants import Workbench
from autotm.kernels.target import machine_target
from autotm.lower.step import whole_step
from autotm.model.config import RunConfig
from autotm.model.errors import BadInputError
from autotm.model.files import read_yaml, save
from autotm.model.fusion import Decision
from autotm.model.fusion_policy import FEATURE_VERSION, Branch, Expert, FusionPolicies, Layer, Policy
from autotm.model.graph import Initial
from autotm.runtime.step_times import RunOptions
from autotm.stages.context import Context
from autotm.stages.fusion import POLICIES, fusion_run_stage
from autotm.study.setup import load_study
from autotm.zoo.builder import NetworkBuilder

RUN = RunOptions(min_steps=3, min_seconds=0.0, patience_s=0.0)
CLASSES = ("apply", DONT_CARE, "inline")


def network():
    net = NetworkBuilder("small", 8, 0.01)
    x = net.input("data", (8, 32), Initial("normal"))
    for _ in range(2):
        x = net.dense(x, 32)
    return net.softmax_cross_entropy(net.dense(x, 4, relu=False))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    objects = tmp_path_factory.mktemp("objects")
    return Workbench(network(), "tiny", small_step.machine(threads=1), small_step.DEVICES, objects)


def policy(*experts, names=("level",), surely=0.0):
    zeros, ones = (0.0,) * len(names), (1.0,) * len(names)
    return Policy("hand", FEATURE_VERSION, names, zeros, ones, experts, surely, {}, 1.0, None, {})


def always(name):
    return Expert((name,), (Layer(((0.0,),), (0.0,)),))


def test_experts_rectify_all_but_their_last_layer():
    layers = (Layer(((1.0, -1.0),), (0.0, 0.0)), Layer(((0.0, 0.0, 1.0), (0.0, 0.0, 1.0)), (0.5, 0.0, 0.0)))
    told = Answers(policy(Expert(CLASSES, layers)))(np.array([[0.2], [0.9], [-0.9]]))
    assert told == ["apply", "inline", "inline"], "the sum of the hidden neurons is the size of the number"


def test_a_tree_goes_below_up_to_its_threshold():
    tree = (Branch(0, 1.0, 1, 2, (0.5, 0.5)), Branch(-1, 0.0, -1, -1, (1.0, 0.0)), Branch(-1, 0.0, -1, -1, (0.2, 0.8)))
    told = Answers(policy(Expert(("apply", "inline"), tree=tree)))(np.array([[0.0], [1.0], [1.5]]))
    assert told == ["apply", "apply", "inline"]


def test_a_mixture_acts_where_its_mean_is_sure():
    sure = policy(always("inline"), always("inline"), always("apply"), surely=0.5)
    torn = policy(always("inline"), always("apply"), always(DONT_CARE), surely=0.5)
    assert Answers(sure)(np.zeros((1, 1))) == ["inline"]
    assert Answers(torn)(np.zeros((1, 1))) == [DONT_CARE]


def test_features_are_numbers_of_the_operators_at_a_path(bench):
    flow, features = bench.dataflow, Features(bench.dataflow, 1)
    assert len(set(features.names)) == len(features.names)
    relu = next(place for place in flow.operators if flow.nodes[place].name.startswith("relu"))
    reader = next(one for one in flow.readers[relu] if flow.nodes[one].name.startswith("matmul."))
    own = dict(zip(features.names, features.of((reader, relu)), strict=True))
    assert own["operator elements"] == pytest.approx(math.log1p(8 * 32))
    assert own["reader flops"] == pytest.approx(math.log1p(2 * 8 * 32 * 32))
    assert own["reader sums"] == pytest.approx(math.log(32))
    assert own["reads an element"] == pytest.approx(math.log(32)), "each element is read for each column"
    assert (own["operator is elementwise"], own["reader is matmul"], own["operator is matmul"]) == (1, 1, 0)
    assert own["readers"] > 1
    assert not own["no other reader"]
    assert all(map(math.isfinite, itertools.chain.from_iterable(map(features.of, executed(flow, flow.default)))))


def test_where_a_policy_does_not_care_tvm_decides(bench):
    flow = bench.dataflow
    own = grouping(policy(always(DONT_CARE)), flow, Features(flow, 1), bench.has_schedule)
    assert {*own.groups} == {*flow.default.groups}
    unfused = grouping(policy(always("apply")), flow, Features(flow, 1), bench.has_schedule)
    assert {*unfused.groups} == {(place,) for place in range(len(flow.nodes))}


def test_a_learned_fusion_computes_what_the_default_does(bench):
    """As data, so that what a file holds is what fuses."""
    kinds = TypeAdapter(Policy)
    own = kinds.validate_python(json.loads(kinds.dump_json(policy(always("inline")))))
    groups = grouping(own, bench.dataflow, Features(bench.dataflow, 1), bench.has_schedule)
    assert any(decision is Decision.INLINE for decision in executed(bench.dataflow, groups).values())
    (times,) = bench.compared([bench.compiled(groups)], RUN)
    assert times.difference <= 1
    target = machine_target(bench.machine)
    module = LearnedFuseOps(own, target, 1)(whole_step(network()).module)
    kernels = [name for name in module.functions if name.name_hint != "main"]
    assert 0 < len(kernels) <= len(bench.dataflow.live(groups))


def test_a_policy_for_other_features_is_refused(bench):
    own = policy(always("inline"))
    older = dataclasses.replace(own, feature_version=FEATURE_VERSION - 1)
    other = dataclasses.replace(own, feature_names=("moon phase",))
    for wrong in (older, other):
        with pytest.raises(BadInputError, match=r"policy hand was learned from features .*learn it anew"):
            grouping(wrong, bench.dataflow, Features(bench.dataflow, 1), bench.has_schedule)


def test_a_network_is_fused_by_a_policy_of_a_file(tmp_path):
    context = Context(small_step.machine(threads=1), small_step.DEVICES, 20)
    study = load_study(read_yaml(SHIPPED, "study") | {"scale": "tiny"}, SHIPPED, SHIPPED.parent, tmp_path)
    file = tmp_path / "policies.json"
    save(file, POLICIES, FusionPolicies((), 0, (policy(always("apply")),)), {})

    def run(name):
        config = RunConfig(min_steps=3, min_seconds=0.0, patience_s=0.0)
        source, paths = study.network("mlp"), study.paths("mlp")
        return fusion_run_stage(context, source, config, paths, (file, name), None, is_inference=True)

    found = run("hand")
    assert found.kernels == found.operators > found.default_kernels
    assert set(found.decisions.executed.values()) == {Decision.APPLY}
    with pytest.raises(BadInputError, match="unknown policy 'hnad'; did you mean 'hand'"):
        run("hnad")
