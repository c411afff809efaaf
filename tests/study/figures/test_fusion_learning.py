"""Figures of what is learned about fusion: drawn from files, with conclusions that follow from their numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from synthetic_records import PROVENANCE

from autotm.model.config import StyleConfig
from autotm.model.files import save
from autotm.model.fusion import Decision, FusionOptimum, FusionTimes, GroupingTimes, Kind
from autotm.model.fusion_policy import (
    FEATURE_VERSION,
    FusionBench,
    FusionPolicies,
    FusionPromises,
    FusionRewards,
    FusionSelection,
    MeasuredGrouping,
    PlacementCurve,
    PlacementSearch,
    Policy,
    Promise,
    Rewards,
    Setting,
    Target,
)
from autotm.model.limit import Limit
from autotm.stages.fusion import fusion_figure_stage
from autotm.study.columns import MEANINGS
from autotm.study.figures.fusion_learning import (
    fastest_learned,
    greedy,
    labels_summary,
    placements_summary,
    policies_summary,
    regrets,
    rewards_summary,
    table_of_labels,
    table_of_placements,
    table_of_policies,
    table_of_rewards,
)

SOURCE = {**PROVENANCE, "machine": "laptop-2t", "seed": 20}
RIDGE = Setting("ridge", 1.0, 0.5, Target.LOG, "baseline")
LASSO = Setting("lasso", 1.0, None, Target.TANH, "baseline")
NAMES = {"ridge": RIDGE.name, "lasso": LASSO.name}
STEP = {"scale": "tiny", "identity": "0" * 16}


def times(ratio, error=0.005):
    return FusionTimes(ratio * 1e-3, 1e-3, ratio, error, 1.0, 0.005, 0.1, disturbed=False)


def grouping(ratio):
    return MeasuredGrouping({}, 3, 100, None if ratio is None else times(ratio), "" if ratio else "'w' differs")


def written(folder, kind, *found):
    paths = [folder / f"{kind}-{number}.json" for number in range(len(found))]
    for path, one in zip(paths, found, strict=True):
        save(path, kind, one, SOURCE)
    return paths


@pytest.fixture
def rewards(tmp_path):
    weights = {"a/b": {Decision.INLINE: 0.1, Decision.APPLY: -0.1}, "a/c": {Decision.APPLY: 0.0}}
    fits = tuple(Rewards(setting, 0.6, 0.9, weights) for setting in (RIDGE, LASSO))
    made = Promise(RIDGE.name, 0.2, 1, 0), Promise(LASSO.name, 0.5, 0, 1)
    both = [
        (FusionRewards(network, is_training=is_training, executions=30, fits=fits, **STEP),
         FusionPromises(network, is_training=is_training, best_seen=0.9, promises=made,
                        groupings=(grouping(0.95), grouping(None)), **STEP))
        for network, is_training in (("a", True), ("a", False))
    ]  # fmt: skip
    best = {"a/training": NAMES, "a/inference": NAMES}
    selection = FusionSelection(best, NAMES, NAMES, {})
    return {
        "rewards": written(tmp_path, "fusion_rewards", *(one for one, _ in both)),
        "promises": written(tmp_path, "fusion_promises", *(one for _, one in both)),
        "selection": written(tmp_path, "fusion_selection", selection),
    }


@pytest.fixture
def policies(tmp_path):
    names = (
        *(f"ridge-general-{tau:g}" for tau in (5e-5, 1e-3)), "mixture-ridge", "mixture-lasso", "logistic", "tree"
    )  # fmt: skip
    labels = {"inline": 0.5, "apply": 0.3, "dont_care": 0.2}
    found = tuple(
        Policy(
            name, FEATURE_VERSION, ("f", "g"), (0.0, 0.0), (1.0, 1.0), (), 0.0, labels, 0.8, 0.6, {"f": 0.3, "g": 0.0}
        )
        for name in names
    )
    return {"policies": written(tmp_path, "fusion_policies", FusionPolicies(("a/training", "b/training"), 120, found))}


def benches(folder, *steps):
    """Write what policies take on steps: whether held out, and ratios by policy."""
    made, optima = [], []
    for number, (is_held_out, ratios) in enumerate(steps):
        groupings = tuple(grouping(ratio) for ratio in ratios.values())
        choices = {name: place for place, name in enumerate(ratios)}
        own = {"network": f"n{number}", "is_training": True, **STEP}
        made.append(FusionBench(is_held_out=is_held_out, choices=choices, groupings=groupings, **own))
        best = GroupingTimes(Kind.CHEAPEST, {}, 3, 100, 1e-3, times(0.9))
        optima.append(
            FusionOptimum(
                operators=9, default_kernels=3, default_peak_bytes=100, default_sum_s=1e-3, kernels_timed=5, regions=(),
                groupings=(best,), best=0, best_times=times(0.9), **own,
            )
        )  # fmt: skip
    return {"benches": written(folder, "fusion_bench", *made), "optima": written(folder, "fusion_optimum", *optima)}


STEPS = (
    (False, {"p": 0.9, "q": 1.2, "r": 1.0, "unfused": 1.5, "random-0": 1.3}),
    (False, {"p": 1.1, "q": 0.8, "r": 1.3, "unfused": 1.5, "random-0": 0.7}),
    (True, {"p": 1.05, "q": None, "r": 1.0, "unfused": 1.5, "random-0": 1.2}),
)


def test_every_figure_is_drawn_from_files(rewards, policies, tmp_path):
    for name, files in (("rewards", rewards), ("labels", policies), ("policies", benches(tmp_path, *STEPS))):
        csv = tmp_path / f"{name}.csv"
        fusion_figure_stage(StyleConfig(), files, csv)
        assert set(pd.read_csv(csv)) <= set(MEANINGS)
        assert csv.with_suffix(".pdf").stat().st_size > 1000


def test_promises_stand_beside_what_was_measured(rewards):
    table = table_of_rewards(**rewards)
    own = table[(table["what"] == "setting") & (table["model"] == "ridge")]
    assert own["promised_ratio"].tolist() == pytest.approx([math.exp(-0.2)] * 2)
    assert own["step_ratio"].tolist() == [0.95, 0.95]
    assert set(own["chosen"]) == {"best, general, hand"}
    failed = table[table["model"] == "lasso"]
    assert failed["promised_ratio"].isna().all(), "what saturates is no time"
    assert set(failed["failure"]) == {"'w' differs"}
    decisions = table[table["what"] == "decision"]
    assert sorted(decisions["reward"]) == [-0.1, -0.1, 0.0, 0.0, 0.1, 0.1]
    text = ". ".join(rewards_summary(table))
    assert "explains 0.90 of what it was fitted to and 0.60 of what was left out" in text
    assert "What general ridge asks for takes 0.950 of TVM's fusion's time (0.950 to 0.950)" in text


def test_labels_say_what_is_told_of_unseen_networks(policies):
    text = ". ".join(labels_summary(table_of_labels(**policies)))
    assert "120 decisions of 2 steps" in text
    assert "Policy tree tells 0.80 of the labels that it learned, 0.60 of those of networks that were left out" in text
    assert "the commonest label is 0.50" in text


def test_the_policy_is_chosen_by_training_steps_and_judged_on_others(tmp_path):
    table = table_of_policies(**benches(tmp_path, *STEPS))
    assert fastest_learned(table) == "q", "the least geometric mean of training steps, whatever it fails on elsewhere"
    table = table[table["policy"] != "q"]
    lines = list(policies_summary(table))
    assert lines[0].startswith("The fastest policy on training steps, p, takes 0.995")
    assert "faster on 1 and slower on 1" in lines[0]
    assert "takes 1.050 of the time of TVM's fusion on 1 steps of held out networks" in lines[2]
    assert "slower on 1" in lines[2]
    assert lines[3] == "There the best grouping takes 0.900 (0.900 to 0.900)"
    assert lines[4] == "It is faster than 0.67 of 3 random policies"


def test_regret_is_0_of_the_best_and_1_of_the_worst(tmp_path):
    table = table_of_policies(**benches(tmp_path, *STEPS))
    found = regrets(table)
    assert found.min(axis=1).tolist() == [0, 0, 0]
    assert found.max(axis=1).tolist() == [1, 1, 1]
    assert found.loc[("training", "n0", "training"), "r"] == pytest.approx((1.0 - 0.9) / (1.2 - 0.9))


def test_policies_are_added_by_what_they_leave():
    table = pd.DataFrame({"a": [0.0, 1.0, 1.0], "b": [1.0, 0.0, 0.3], "c": [0.4, 0.4, 0.4]})
    assert greedy(table) == ["c", "b", "a"]
    assert greedy(table, 1) == ["c"]


def test_placements_end_above_the_plan_that_is_proven(tmp_path):
    curves = (
        PlacementCurve("annealing", 1, 500, ((1, 1.5), (40, 1.2))),
        PlacementCurve("rewards", 1, 505, ((2, 1.4), (33, 1.05))),
    )
    found = PlacementSearch("mnist", "tiny", Limit.parse("4:1"), 60, 40, 101.0, 100.0, 2.5, 1.6, curves)
    files = {"placements": written(tmp_path, "placements", found)}
    csv = tmp_path / "placements.csv"
    fusion_figure_stage(StyleConfig(), files, csv)
    assert set(pd.read_csv(csv)) <= set(MEANINGS)
    (line,) = placements_summary(table_of_placements(**files))
    assert line == (
        "mnist, 60 tensors, limit 4:1: above the solver's plan, which is proven to 1.00%, end annealing 20.00% after "
        "500; rewards 5.00% after 505 evaluations; first touch is 60% above it, all slow 150%"
    )
