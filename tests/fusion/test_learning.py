"""Rewards of fusion decisions, and policies learned from them: planted truths are found, and equal brute force."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import small_step

pytest.importorskip("sklearn")

from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from autotm.fusion import exhaustive, judging, learning, rewards
from autotm.fusion.policy import DONT_CARE, _Model
from autotm.fusion.variants import Workbench
from autotm.model.config import FusionConfig
from autotm.model.errors import BadInputError
from autotm.model.fusion import Decision, FusionTimes
from autotm.model.fusion_policy import (
    FEATURE_VERSION,
    Execution,
    FusionProblem,
    FusionPromises,
    FusionSelection,
    MeasuredGrouping,
    Promise,
    Rewards,
    Setting,
    Target,
)
from autotm.model.graph import Initial
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.store import KernelStore
from autotm.runtime.step_times import RunOptions
from autotm.zoo.builder import NetworkBuilder

APPLY, INLINE, RECOMPUTE = Decision.APPLY, Decision.INLINE, Decision.RECOMPUTE
SETTING = Setting("ridge", 1.0, 0.005, Target.LOG, "baseline")


# Rewards.


def test_the_full_grids_are_there():
    models = [one.model for one in rewards.SETTINGS]
    assert (models.count("ridge"), models.count("lasso")) == (63, 24)
    assert len({one.name for one in rewards.SETTINGS}) == 87
    assert {*rewards.HAND.values()} <= {*rewards.SETTINGS}


def test_benefits_are_those_of_the_targets():
    ratios = np.array([0.5, 1.0, 1.5])
    assert rewards.benefits(ratios, Target.LINEAR, "baseline") == pytest.approx([0.5, 0.0, -0.5])
    assert rewards.benefits(2 * ratios, Target.LINEAR, "mean") == pytest.approx([0.5, 0.0, -0.5])
    assert rewards.benefits(ratios, Target.LOG, "baseline") == pytest.approx(-np.log(ratios))
    assert rewards.benefits(ratios, Target.TANH, "baseline") == pytest.approx(np.tanh([5, 0, -5]))
    assert rewards.benefits(ratios, Target.SIGMOID, "baseline") == pytest.approx(
        [1 / (1 + math.exp(-10)), 0.5, 1 / (1 + math.exp(10))]
    )


def test_a_decision_counts_less_by_each_level():
    first, second = {"a/b": INLINE, "a/b/c": APPLY, "d/c": APPLY}, {"a/b": APPLY, "d/c": APPLY}
    matrix, pairs = rewards.design([first, second], 0.4)
    assert pairs == [("a/b", INLINE), ("a/b/c", APPLY), ("d/c", APPLY), ("a/b", APPLY)]
    assert matrix.tolist() == [[1.0, 0.4, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]


def tree(draw, path="r", level=0):
    """Return random weights of a tree of decisions; at some paths not all decisions are known."""
    found = {}
    for child in range(draw.randint(1, 2 if level else 3)):
        own = f"{path}/{level}{child}"
        kinds = draw.sample([APPLY, INLINE, RECOMPUTE], draw.randint(1, 3))
        found[own] = {kind: draw.uniform(-1, 1) for kind in kinds}
        if level < 2 and {INLINE, RECOMPUTE} & {*kinds}:
            found |= tree(draw, own, level + 1)
    return found


def brute_force(weights, decay, path="r"):
    """Return the most that decisions below a path are worth."""
    children = [one for one in weights if one.rpartition("/")[0] == path]
    return sum(
        max(
            weight + (0.0 if kind is APPLY else decay * brute_force(weights, decay, child))
            for kind, weight in weights[child].items()
        )
        for child in children
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_dynamic_programme_equals_all_trees(seed):
    draw = random.Random(seed)
    weights, decay = tree(draw), draw.choice([0.4, 0.9, 1.0])
    chosen, _ = rewards.most_worth(weights, decay)
    asked = rewards.requested(chosen)
    # What is asked for, with what is applied below it: just the paths that then occur.
    occurring = {
        path: asked.get(path, APPLY) for path in weights if path.count("/") == 1 or path.rpartition("/")[0] in asked
    }
    occurring = {path: chosen[path] for path in occurring}
    worth = sum(decay ** rewards.level(path) * weights[path][own] for path, own in occurring.items())
    assert worth == pytest.approx(brute_force(weights, decay))
    assert rewards.promised(weights, decay, occurring) == pytest.approx(worth)


def test_of_equals_the_operator_is_applied():
    chosen, worth = rewards.most_worth({"a/b": {INLINE: 0.0, APPLY: 0.0, RECOMPUTE: 0.0}}, 1.0)
    assert chosen == {"a/b": APPLY}
    assert worth["a/b"] == {INLINE: 0.0, APPLY: 0.0, RECOMPUTE: 0.0}


def problem(network, seed=0, executions=60, rule=lambda features: 0.05 if features[0] > 0 else -0.05):
    """Return a problem where inlining gains what a rule says of the first feature, and is noisy in nothing."""
    draw = random.Random(f"{network} {seed}")
    features = {f"a/{place}": (draw.uniform(-1, 1), draw.uniform(-1, 1), 1.0) for place in range(12)}
    rows = []
    for _ in range(executions):
        executed = {path: draw.choice([INLINE, APPLY]) for path in features}
        gain = sum(rule(features[path]) for path, own in executed.items() if own is INLINE)
        rows.append(Execution("optimum", executed, math.exp(-gain), 0.0))
    default = dict.fromkeys(features, APPLY)
    return FusionProblem(
        network, "tiny", True, "id", FEATURE_VERSION, ("told", "noise", "same"), features, default, tuple(rows)
    )


def test_rewards_of_what_adds_up_are_found():
    own = problem("a")
    fits = {fit.setting.name: fit for fit in learning.fitted(own).fits}
    fit = fits[SETTING.name]
    assert fit.r2_fitted >= fit.r2 > 0.95
    chosen, _ = rewards.most_worth(fit.weights, 1.0)
    assert all(
        (own is INLINE) == (own_features[0] > 0)
        for own, own_features in zip(chosen.values(), (own.features[path] for path in chosen), strict=True)
    )
    assert any(
        sum(abs(weight) > 1e-8 for of in one.weights.values() for weight in of.values()) > 0
        for one in fits.values()
        if one.setting.model == "lasso"
    )


def test_too_few_executions_are_refused_with_the_remedy():
    with pytest.raises(BadInputError, match=r"network a: 4 groupings were measured, and rewards need 5; raise"):
        learning.fitted(problem("a", executions=4))


# Labels and policies.


@pytest.mark.parametrize(
    ("model", "inline", "applied", "wanted"),
    [
        ("ridge", 0.2, 0.1, "inline"), ("ridge", 0.1, 0.2, "apply"), ("ridge", 0.1, 0.1004, DONT_CARE),
        ("lasso", 0.0, 0.0, DONT_CARE), ("lasso", 1e-9, -0.2, "inline"), ("lasso", -0.1, 0.0, "apply"),
        ("lasso", 0.3, 0.2, "inline"),
    ],
)  # fmt: skip
def test_labels_follow_rewards(model, inline, applied, wanted):
    fit = Rewards(Setting(model, 1.0, None, Target.LOG, "mean"), 0.0, 0.0, {})
    assert learning.label(fit, {INLINE: inline, APPLY: applied}, 1e-3) == wanted


def times(ratio):
    return FusionTimes(ratio, 1.0, ratio, 0.01, 1.0, 0.01, 0.5, False)


def promises(network, ratios, best_seen=1.0):
    """Return what settings promise; a setting without a time failed."""
    groupings = tuple(MeasuredGrouping({}, 1, 1, None if ratio is None else times(ratio)) for ratio in ratios.values())
    made = tuple(Promise(name, 0.0, 0, place) for place, name in enumerate(ratios))
    return FusionPromises(network, "tiny", True, "id", best_seen, made, groupings)


def test_settings_are_selected_by_what_they_miss():
    first = promises("a", {"ridge-1": 0.8, "ridge-2": 0.9, "lasso-1": 1.0, "lasso-2": None})
    second = promises("b", {"ridge-1": 1.2, "ridge-2": 0.7, "lasso-1": 1.1, "lasso-2": 0.6}, best_seen=0.5)
    found = learning.selected([first, second])
    assert found.best["a/training"] == {"ridge": "ridge-1", "lasso": "lasso-1"}
    assert found.best["b/training"] == {"ridge": "ridge-2", "lasso": "lasso-2"}
    assert found.general == {"ridge": "ridge-2", "lasso": "lasso-1"}, "what failed somewhere is not general"
    assert found.misses["ridge-2"] == pytest.approx((0.9 - 0.8) / 0.2 + (0.7 - 0.5) / 0.5)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("model", ["mlp", "logistic", "tree"])
def test_files_hold_the_models_that_were_fitted(model, classes):
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(80, 3))
    labels = np.array([str(int(row[0] > 0) + (classes > 2) * int(row[1] > 1)) for row in inputs])
    expert = learning._expert(model, inputs, labels)
    fitted = learning._MODELS[model]().fit(inputs, labels)
    assert isinstance(fitted, LogisticRegression | MLPClassifier | DecisionTreeClassifier)
    assert expert.classes == tuple(fitted.classes_)
    assert _Model(expert).probabilities(inputs) == pytest.approx(fitted.predict_proba(inputs))


def test_policies_learn_a_rule_that_holds_on_a_network_that_was_left_out():
    problems = [problem(name) for name in "abcd"]
    fits = [learning.fitted(own) for own in problems]
    names = {"ridge": SETTING.name, "lasso": rewards.HAND["lasso"].name}
    selection = FusionSelection({learning.step_name(own): names for own in problems}, names, names, {})
    found = learning.learned(problems, fits, selection)
    assert found.decisions == 48
    by_name = {one.name: one for one in found.policies}
    assert len(by_name) == 28
    for name in ("ridge-general-5e-05", "mixture-ridge", "logistic", "tree"):
        assert by_name[name].accuracy > 0.9
        assert by_name[name].accuracy_unseen > 0.8
        assert max(by_name[name].importance, key=by_name[name].importance.__getitem__) == "told"
        assert by_name[name].feature_names == ("told", "noise"), "a feature that is the same everywhere says nothing"
    shares = by_name["ridge-general-0.05"].labels, by_name["ridge-general-5e-05"].labels
    assert shares[0].get(DONT_CARE, 0) >= shares[1].get(DONT_CARE, 0)


# A step, from its measured groupings to what policies make of it.


def test_a_step_is_judged_as_rewards_and_policies_ask(tmp_path):
    net = NetworkBuilder("small", 8, 0.01)
    x = net.dense(net.input("data", (8, 32), Initial("normal")), 32)
    network = net.softmax_cross_entropy(net.dense(x, 4, relu=False))
    bench = Workbench(network, "tiny", small_step.machine(threads=1), small_step.DEVICES, tmp_path / "objects")
    profile = ProfileOptions(min_repeats=3, max_repeats=3, rotation_bytes=1)
    run = RunOptions(min_steps=3, min_seconds=0.0, patience_s=0.0)
    with KernelStore(tmp_path / "fusion.sqlite") as store:
        optimum = exhaustive.optimum(bench, store, FusionConfig(best=2, random=5, step_s=0.0), profile, run)
    known = judging.problem(bench, optimum, {})
    assert (
        {*known.features}
        == {*known.default}
        == set(itertools.chain.from_iterable(one.executed for one in known.executions))
    )
    fitted = learning.fitted(known)
    found = judging.promises(bench, known, fitted, run)
    assert [one.setting for one in found.promises] == [one.name for one in rewards.SETTINGS]
    assert len(found.groupings) == len({tuple(sorted(one.executed.items())) for one in found.groupings})
    assert all(own.times.difference <= 1 for own in found.groupings)
    policies = learning.learned([known], [fitted], learning.selected([found]))
    assert all(one.accuracy_unseen is None for one in policies.policies), "there is no other network"
    judged = judging.benched(bench, policies, 2, run, is_held_out=True)
    assert {*judged.choices} == {one.name for one in policies.policies} | {"unfused", "random-0", "random-1"}
    assert {*judged.choices.values()} == {*range(len(judged.groupings))}
    unfused = judged.groupings[judged.choices["unfused"]]
    assert set(unfused.executed.values()) == {APPLY}
    with pytest.raises(BadInputError, match=r"what was measured is of another step .*delete its folder"):
        judging.problem(
            Workbench(second(), "tiny", bench.machine, bench.devices_dir, tmp_path / "objects"), optimum, {}
        )


def second():
    net = NetworkBuilder("small", 8, 0.01)
    return net.softmax_cross_entropy(net.dense(net.input("data", (8, 32), Initial("normal")), 4, relu=False))
