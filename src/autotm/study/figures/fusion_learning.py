"""Figures of what is learned about fusion: rewards of decisions, labels of policies, and steps that policies fuse."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from autotm.model.config import StyleConfig
from autotm.model.files import load_with_provenance
from autotm.model.fusion import Decision, FusionOptimum
from autotm.model.fusion_policy import (
    FusionBench,
    FusionPolicies,
    FusionPromises,
    FusionRewards,
    FusionSelection,
    PlacementSearch,
    Policy,
    Target,
)
from autotm.study.drawing import GRAY, Drawn, finish, panels
from autotm.study.figures.fusion import STEPS, Z, geometric_mean, measured_columns
from autotm.study.tables import versions_text

BEST_GROUPING = "best grouping"
USES = ("training", "held out")
_MOST_POLICIES = 8
"""Of the policies that together come near to the best of all."""
_READ = ("ridge-general-5e-05", "logistic", "tree")
"""Policies whose features are drawn."""
_FEATURES = 12
"""That matter most, of those."""


def _origin(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"machine": source["machine"], "cpu_model": source["cpu_model"], "seed": source["seed"],
            "versions": versions_text(source)}  # fmt: skip


# Rewards.


def table_of_rewards(rewards: Sequence[Path], promises: Sequence[Path], selection: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each setting of a step, and one for each decision by the general setting of ridge regression.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    chosen, _ = load_with_provenance(*selection, "fusion_selection", FusionSelection)
    rows = []
    for of_rewards, of_promises in zip(rewards, promises, strict=True):
        fitted, _ = load_with_provenance(of_rewards, "fusion_rewards", FusionRewards)
        found, source = load_with_provenance(of_promises, "fusion_promises", FusionPromises)
        step = STEPS[0] if found.is_training else STEPS[1]
        best = chosen.best[f"{found.network}/{step}"]
        promised = {one.setting: one for one in found.promises}
        for fit in fitted.fits:
            setting, promise = fit.setting, promised[fit.setting.name]
            is_log = setting.target is Target.LOG and setting.reference == "baseline"
            grouping = found.groupings[promise.grouping]
            rows.append(
                measured_columns(found, grouping.times, source)
                | {
                    "what": "setting",
                    "setting": setting.name,
                    "model": setting.model,
                    "chosen": _chosen(setting.name, setting.model, best, chosen),
                    "executions": fitted.executions,
                    "best_seen": found.best_seen,
                    "r2": fit.r2,
                    "r2_fitted": fit.r2_fitted,
                    # Benefits of other targets are not times.
                    "promised_ratio": math.exp(-promise.benefit) if is_log else math.nan,
                    "changed": promise.changed,
                    "failure": grouping.failure,
                }
            )
            if setting.name == chosen.general["ridge"]:
                rows += [
                    measured_columns(found, None, source)
                    | {"what": "decision", "setting": setting.name, "decision": str(own), "reward": weight}
                    for weights in fit.weights.values()
                    for own, weight in weights.items()
                ]  # fmt: skip
    return pd.DataFrame(rows)


def _chosen(setting: str, model: str, best: Mapping[str, str], chosen: FusionSelection) -> str:
    names = {"best": best[model], "general": chosen.general[model], "hand": chosen.hand[model]}
    return ", ".join(kind for kind, name in names.items() if name == setting)


def rewards_summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield how well rewards explain times, and what the groupings take that they ask for, with 95 % intervals."""
    settings = table[table["what"] == "setting"]
    for model, own in settings.groupby("model", sort=False):
        general = own[own["chosen"].str.contains("general")]
        yield (
            f"The general {model} setting, {general['setting'].iloc[0]}, explains {general['r2_fitted'].median():.2f} "
            f"of what it was fitted to and {general['r2'].median():.2f} of what was left out (R squared, medians of "
            f"{len(general)} steps)"
        )
        for kind in ("best", "general", "hand"):
            of_kind = own[own["chosen"].str.contains(kind)]
            mean, low, high = geometric_mean(of_kind["step_ratio"])
            yield f"What {kind} {model} asks for takes {mean:.3f} of TVM's fusion's time ({low:.3f} to {high:.3f})"
    seen = settings.drop_duplicates(["network", "step"])
    mean, low, high = geometric_mean(seen["best_seen"])
    noise = geometric_mean(seen["noise"])
    yield (
        f"The best grouping that was seen before takes {mean:.3f} ({low:.3f} to {high:.3f}), the least of many noisy "
        f"times; a second copy of TVM's fusion {noise[0]:.3f} ({noise[1]:.3f} to {noise[2]:.3f})"
    )


def draw_rewards(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the rewards of decisions, how well they explain times, and promised against measured times."""
    settings, decisions = table[table["what"] == "setting"], table[table["what"] == "decision"]
    figure, axes = panels(3, style)
    colors = dict(zip(Decision, sns.color_palette(style.palette, len(Decision)), strict=True))
    limit = max(float(decisions["reward"].abs().quantile(0.99)), 1e-6)
    for own, color in colors.items():
        rewards = decisions[decisions["decision"] == str(own)]["reward"].clip(-limit, limit)
        axes[0].hist(rewards, np.linspace(-limit, limit, 41), histtype="step", color=color, label=str(own))
    axes[0].set_yscale("log")
    axes[0].set_xlabel("reward of a decision")
    axes[0].set_ylabel("decisions")
    axes[0].legend()
    finish(axes[0], "a", "rewards, general ridge")
    long = settings.melt(["model"], ["r2_fitted", "r2"], "of", "value").replace(
        {"of": {"r2_fitted": "fitted", "r2": "left out"}}
    )
    sns.boxplot(long, x="model", y="value", hue="of", ax=axes[1], palette=style.palette, fliersize=1, linewidth=0.7)
    axes[1].set_ylim(-0.5, 1.02)
    axes[1].set_xlabel("")
    axes[1].set_ylabel("R² over settings and steps")
    axes[1].legend(title="executions")
    finish(axes[1], "b", "what rewards explain")
    known = settings.dropna(subset=["promised_ratio", "step_ratio"])
    axes[2].errorbar(
        known["promised_ratio"], known["step_ratio"], Z * known["ratio_error"], fmt="o", markersize=2.5, elinewidth=0.6
    )
    ends = [min(known["promised_ratio"].min(), known["step_ratio"].min()), max(known["step_ratio"].max(), 1.0)]
    axes[2].plot(ends, ends, color=GRAY, linewidth=0.8)
    axes[2].set_xlabel("promised time over TVM's fusion's")
    axes[2].set_ylabel("measured")
    finish(axes[2], "c", "promised and measured")
    return figure, (
        "What fusion decisions are worth by linear models of measured groupings. (c) is of those that fit the "
        "logarithm of a time over TVM's fusion's; the line is equality, bars are 95 % intervals. Times are MEASURED, "
        f"rewards are predictions. {_machine(table)} {'. '.join(rewards_summary(table))}."
    )


# Labels.


def table_of_labels(policies: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each policy with what it learned from, and one for each feature of those that are read.

    Raises:
        DamagedFileError: the file cannot be read.
    """
    found, source = load_with_provenance(*policies, "fusion_policies", FusionPolicies)
    rows = [
        {
            "policy": policy.name,
            "what": "labels",
            "tau": _tau(policy),
            **{name: policy.labels.get(name, 0.0) for name in ("inline", "apply", "dont_care")},
            "accuracy": policy.accuracy,
            "accuracy_unseen": math.nan if policy.accuracy_unseen is None else policy.accuracy_unseen,
            "decisions": found.decisions,
            "steps": len(found.steps),
            **_origin(source),
        }
        for policy in found.policies
    ]
    rows += [
        {"policy": policy.name, "what": "feature", "feature": name, "importance": value, **_origin(source)}
        for policy in found.policies
        if policy.name in _READ
        for name, value in policy.importance.items()
    ]
    return pd.DataFrame(rows)


def _tau(policy: Policy) -> float:
    model, *rest = policy.name.split("-", 2)
    return float(rest[1]) if model == "ridge" and len(rest) > 1 else math.nan


def labels_summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield how many labels policies tell, of networks that they learned from and of others."""
    own = table[table["what"] == "labels"].set_index("policy")
    first = own.iloc[0]
    yield f"{first['decisions']:.0f} decisions of {first['steps']:.0f} steps were both inlined and applied"
    for name in (*_READ, "mixture-ridge", "mixture-lasso"):
        row = own.loc[name]
        largest = max(row["inline"], row["apply"], row["dont_care"])
        yield (
            f"Policy {name} tells {row['accuracy']:.2f} of the labels that it learned, {row['accuracy_unseen']:.2f} "
            f"of those of networks that were left out, where the commonest label is {largest:.2f} of all"
        )


def draw_labels(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw the classes of labels against the threshold, how many policies tell, and which features matter."""
    figure, axes = panels(3, style, widen=1.2)
    labels = table[(table["what"] == "labels") & table["tau"].notna()]
    general = labels[labels["policy"].str.startswith("ridge-general")].sort_values("tau")
    classes = ("inline", "apply", "dont_care")
    axes[0].stackplot(
        general["tau"], *(general[name] for name in classes), labels=[name.replace("_", " ") for name in classes],
        colors=sns.color_palette(style.palette, len(classes)),
    )  # fmt: skip
    for ax, values in ((axes[0], ()), (axes[1], ("accuracy", "accuracy_unseen"))):
        for name in values:
            ax.plot(
                general["tau"], general[name], "o-", markersize=3, label=name.replace("accuracy_unseen", "left out")
            )
        ax.set_xscale("log")
        ax.set_xlabel("least difference of rewards, τ")
        ax.set_ylim(0, 1)
        ax.legend()
    axes[0].set_ylabel("share of decisions")
    axes[1].set_ylabel("share of labels that are told")
    finish(axes[0], "a", "labels, general ridge")
    finish(axes[1], "b", "networks learned and left out")
    features = table[table["what"] == "feature"].pivot_table(index="feature", columns="policy", values="importance")
    largest = features.reindex(features.max(axis=1).sort_values().index).tail(_FEATURES)
    largest.plot.barh(ax=axes[2], color=sns.color_palette(style.palette, features.shape[1]), width=0.75)
    axes[2].set_xlabel("labels lost when it is shuffled")
    axes[2].set_ylabel("")
    axes[2].legend(title="")
    finish(axes[2], "c", "features")
    return figure, (
        "What policies learn from rewards: labels by the least difference that counts, and how many of them a policy "
        f"tells. {_machine(table)} {'. '.join(labels_summary(table))}."
    )


# Steps that policies fuse.


def table_of_policies(benches: Sequence[Path], optima: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each step and policy, and one for the best grouping; columns are in `study/columns.py`.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    rows = []
    for of_bench, of_optimum in zip(benches, optima, strict=True):
        bench, source = load_with_provenance(of_bench, "fusion_bench", FusionBench)
        optimum, _ = load_with_provenance(of_optimum, "fusion_optimum", FusionOptimum)
        use = {"use": USES[1] if bench.is_held_out else USES[0]}
        for name, place in bench.choices.items():
            own = bench.groupings[place]
            more = use | {"policy": name, "kernels": own.kernels, "failure": own.failure}
            rows.append(measured_columns(bench, own.times, source) | more)
        if optimum.best_times is not None:
            more = use | {"policy": BEST_GROUPING, "kernels": optimum.groupings[optimum.best].kernels, "failure": ""}
            rows.append(measured_columns(optimum, optimum.best_times, source) | more)
    return pd.DataFrame(rows)


def _learned(table: pd.DataFrame) -> pd.DataFrame:
    """Return by step and learned policy the time over TVM's fusion's; a failure is as slow as the worst."""
    is_learned = ~table["policy"].str.startswith("random") & ~table["policy"].isin([BEST_GROUPING, "unfused"])
    wide = table[is_learned].pivot_table(index=["use", "network", "step"], columns="policy", values="step_ratio")
    return wide.fillna(wide.max().max())


def fastest_learned(table: pd.DataFrame) -> str:
    """Return the policy that takes least time on the steps that policies learned from, in geometric mean."""
    return str(np.log(_learned(table).loc[USES[0]]).mean().idxmin())


def policies_summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield what the policy takes that is the fastest on training steps, and what the best grouping would."""
    name = fastest_learned(table)
    for use in USES:
        own = table[(table["policy"] == name) & (table["use"] == use)]
        if own.empty:
            continue
        mean, low, high = geometric_mean(own["step_ratio"])
        slower = int((own["step_ratio"] - Z * own["ratio_error"] > own["noise"] + Z * own["noise_error"]).sum())
        faster = int((own["step_ratio"] + Z * own["ratio_error"] < own["noise"] - Z * own["noise_error"]).sum())
        yield (
            f"The fastest policy on training steps, {name}, takes {mean:.3f} of the time of TVM's fusion on "
            f"{len(own)} steps of {use} networks ({low:.3f} to {high:.3f}); beyond the noise it is faster on {faster} "
            f"and slower on {slower}"
        )
        best = table[(table["policy"] == BEST_GROUPING) & (table["use"] == use)]
        of_best = geometric_mean(best["step_ratio"])
        yield f"There the best grouping takes {of_best[0]:.3f} ({of_best[1]:.3f} to {of_best[2]:.3f})"
    drawn = table[table["policy"].str.startswith("random")]
    if not drawn.empty:
        own = table[table["policy"] == name].set_index(["network", "step"])["step_ratio"]
        joined = drawn.join(own.rename("learned"), on=["network", "step"])
        share = float((joined["learned"] < joined["step_ratio"]).mean())
        yield f"It is faster than {share:.2f} of {len(drawn)} random policies"


def regrets(table: pd.DataFrame) -> pd.DataFrame:
    """Return by step and policy how far it is from the best of them, over how far the worst is."""
    wide = _learned(table)
    least, worst = wide.min(axis=1), wide.max(axis=1)
    return wide.sub(least, axis=0).div((worst - least).where(worst > least, 1.0), axis=0)


def greedy(chosen_by: pd.DataFrame, most: int = _MOST_POLICIES) -> list[str]:
    """Return the policies that together leave least mean regret, the best alone first, each added to those before."""
    taken: list[str] = []
    while len(taken) < min(most, chosen_by.shape[1]):
        rest = [name for name in chosen_by.columns if name not in taken]
        taken.append(min(rest, key=lambda name: chosen_by[[*taken, name]].min(axis=1).mean()))
    return taken


def draw_policies(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw what policies take over TVM's fusion, their regrets, and how few of them do."""
    figure, axes = panels(3, style, widen=1.6)
    wide, of_steps = _learned(table), regrets(table)
    order = wide.loc[USES[0]].median().sort_values().index
    colors = dict(zip(USES, sns.color_palette(style.palette, len(USES)), strict=True))
    for ax, values, what in ((axes[0], wide, "time over TVM's fusion's"), (axes[1], of_steps, "regret")):
        long = values[order].melt(ignore_index=False).reset_index()
        sns.boxplot(
            long, x="policy", y="value", hue="use", ax=ax, palette=colors, fliersize=1, linewidth=0.6, order=list(order)
        )
        ax.set_xticks(range(len(order)), order, rotation=90, fontsize="xx-small")
        ax.set_xlabel("")
        ax.set_ylabel(what)
        ax.legend(title="")
    axes[0].axhline(1.0, color=GRAY, linewidth=0.8)
    axes[0].set_yscale("log")
    finish(axes[0], "a", "steps by policies")
    finish(axes[1], "b", "0: the best policy, 1: the worst")
    for use in USES:
        if use in of_steps.index.get_level_values("use"):
            _draw_greedy(axes[2], of_steps.loc[USES[0]], of_steps.loc[use], use, colors[use])
    axes[2].set_xlabel("policies, of which the best is taken for each step")
    axes[2].set_ylabel("regret")
    axes[2].legend()
    finish(axes[2], "c", "few policies, chosen by training steps")
    return figure, (
        "Steps as learned policies fuse them, over TVM's fusion, MEASURED in turn with it. "
        f"{_machine(table)} {'. '.join(policies_summary(table))}."
    )


def _draw_greedy(axes: Axes, chosen_by: pd.DataFrame, judged: pd.DataFrame, use: str, color: Any) -> None:
    names = greedy(chosen_by)
    least = [judged[names[: count + 1]].min(axis=1) for count in range(len(names))]
    counts = range(1, len(names) + 1)
    axes.plot(counts, [own.mean() for own in least], "o-", color=color, markersize=3, label=f"{use}: mean")
    axes.plot(counts, [own.max() for own in least], "--", color=color, linewidth=0.8, label=f"{use}: worst step")


# Placements.


def table_of_placements(placements: Sequence[Path]) -> pd.DataFrame:
    """Return a row for each evaluation after which a search had a better placement, and one for its last.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    rows = []
    for path in placements:
        found, source = load_with_provenance(path, "placements", PlacementSearch)
        common = {
            "network": found.network,
            "limit": str(found.limit),
            "tensors": found.tensors,
            "proven_gap": found.plan_us / found.bound_us - 1,
            "all_slow_ratio": found.all_slow,
            "first_touch_ratio": found.first_touch,
            **_origin(source),
        }
        for curve in found.curves:
            last = (curve.evaluations, curve.improved[-1][1])
            rows += [
                common
                | {"algorithm": curve.algorithm, "search_seed": curve.search_seed, "trial": count, "best_ratio": best}
                for count, best in (*curve.improved, last)
            ]
    return pd.DataFrame(rows)


def placements_summary(table: pd.DataFrame) -> Iterator[str]:
    """Yield for each network how far from the proven plan searches end, and after how many evaluations."""
    for network, own in table.groupby("network", sort=False):
        first, parts = own.iloc[0], []
        for algorithm, runs in own.groupby("algorithm", sort=False):
            ends = runs.sort_values("trial").groupby("search_seed").tail(1)
            found = ", ".join(f"{ratio - 1:.2%}" for ratio in ends["best_ratio"])
            parts.append(f"{algorithm} {found} after {ends['trial'].max()}")
        yield (
            f"{network}, {first['tensors']} tensors, limit {first['limit']}: above the solver's plan, which is proven "
            f"to {first['proven_gap']:.2%}, end {'; '.join(parts)} evaluations; first touch is "
            f"{first['first_touch_ratio'] - 1:.0%} above it, all slow {first['all_slow_ratio'] - 1:.0%}"
        )


def draw_placements(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Draw how far above the proven plan the best placement of each search is, by evaluations."""
    networks = list(dict.fromkeys(table["network"]))
    algorithms = list(dict.fromkeys(table["algorithm"]))
    colors = dict(zip(algorithms, sns.color_palette(style.palette, len(algorithms)), strict=True))
    figure, axes_of = panels(len(networks), style, columns=min(3, len(networks)))
    for letter, axes, network in zip(string.ascii_lowercase, axes_of, networks, strict=False):
        own = table[table["network"] == network].sort_values("trial")
        for (algorithm, seed), run in own.groupby(["algorithm", "search_seed"], sort=False):
            is_first = seed == own["search_seed"].min()
            # A tenth of a per mille is as good as the plan.
            above = (run["best_ratio"] - 1).clip(lower=1e-4)
            axes.step(run["trial"], above, where="post", color=colors[algorithm], label=algorithm if is_first else None)
        axes.axhline(max(own["proven_gap"].iloc[0], 1e-4), color=GRAY, linewidth=0.8, label="proven gap of the plan")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("evaluations")
        axes.set_ylabel("above the plan, share")
        finish(axes, letter if len(networks) > 1 else "", network)
    figure.legend(*axes_of[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure, (
        "How near searches come to the placement of least time that a solver proves, each tensor in one memory for "
        f"life, by evaluations. Times are PREDICTED from profiles. {_machine(table)} "
        f"{'. '.join(placements_summary(table))}."
    )


def _machine(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    is_disturbed = "disturbed" in table and table["disturbed"].fillna(value=False).any()
    disturbed = " Others held the cores during some: their times are too long." if is_disturbed else ""
    return f"Machine {first['machine']}: {first['cpu_model']}. Seed {first['seed']}. {first['versions']}.{disturbed}"


LEARNING_FIGURES: Mapping[
    str, tuple[Callable[..., pd.DataFrame], Callable[..., Drawn], Callable[..., Iterator[str]]]
] = {
    "rewards": (table_of_rewards, draw_rewards, rewards_summary),
    "labels": (table_of_labels, draw_labels, labels_summary),
    "policies": (table_of_policies, draw_policies, policies_summary),
    "placements": (table_of_placements, draw_placements, placements_summary),
}
"""What makes the table of a figure, its picture and caption, and what it concludes."""
