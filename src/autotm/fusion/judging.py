"""Groupings that rewards and policies ask for: what they are learned from, and how long their steps take."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from autotm.fusion.dataflow import Grouping
from autotm.fusion.decisions import TreePath, decision_at, executed, path_of, path_text
from autotm.fusion.features import Features
from autotm.fusion.policy import grouping
from autotm.fusion.rewards import most_worth, promised, requested
from autotm.fusion.variants import Variant, Workbench
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.fusion import Decision, FusionOptimum, FusionSearch, FusionTimes, Kind
from autotm.model.fusion_policy import (
    FEATURE_VERSION,
    Execution,
    FusionBench,
    FusionPolicies,
    FusionProblem,
    FusionPromises,
    FusionRewards,
    MeasuredGrouping,
    Promise,
)
from autotm.runtime.step_times import RunOptions

UNFUSED, RANDOM = "unfused", "random"
"""Policies that are learned from nothing; the second is one of several draws."""


def problem(bench: Workbench, optimum: FusionOptimum, searches: Mapping[str, FusionSearch]) -> FusionProblem:
    """Return the groupings of a step that were measured, and the features of their decisions.

    Raises:
        BadInputError: the files are of another step.
    """
    flow, features = bench.dataflow, Features(bench.dataflow, bench.machine.threads)
    _require_same(bench, optimum.identity)
    executions = [
        Execution("optimum", one.decisions, one.times.ratio, one.times.ratio_error)
        for one in optimum.groupings
        if one.times is not None and one.kind is not Kind.DEFAULT  # Copies that tell of the noise.
    ]
    seen = set()
    for source, search in searches.items():
        for trial in (step.trial for step in search.steps):
            if trial.times is not None and trial.state not in seen:
                seen.add(trial.state)
                asked = {path_of(flow, text): own for text, own in trial.state}
                own = _decisions(bench, bench.resolved(asked).grouping)
                executions.append(Execution(source, own, trial.times.ratio, trial.times.ratio_error))
    texts = list(dict.fromkeys(text for one in executions for text in one.executed))
    paths = {text: path_of(flow, text) for text in texts}
    return FusionProblem(
        optimum.network,
        optimum.scale,
        optimum.is_training,
        optimum.identity,
        FEATURE_VERSION,
        features.names,
        {text: features.of(path) for text, path in paths.items()},
        {text: decision_at(flow.default, path) for text, path in paths.items()},
        tuple(executions),
    )


def promises(bench: Workbench, problem: FusionProblem, rewards: FusionRewards, run: RunOptions) -> FusionPromises:
    """Measure the groupings that the rewards of each setting ask for, in turn with TVM's fusion.

    Decisions that cannot be executed are changed as `resolve` says.

    Raises:
        BadInputError: the files are of another step.
        AutotmError: as `Workbench.compared`.
    """
    _require_same(bench, rewards.identity)
    flow = bench.dataflow
    distinct, made = _Distinct(bench), []
    for fit in rewards.fits:
        chosen, _ = most_worth(fit.weights, fit.setting.decay)
        resolved = bench.resolved({path_of(flow, text): own for text, own in requested(chosen).items()})
        benefit = promised(fit.weights, fit.setting.decay, _decisions(bench, resolved.grouping))
        place = distinct.place(resolved.grouping)
        made.append(Promise(fit.setting.name, benefit, len(resolved.changed), place))
    return FusionPromises(
        rewards.network,
        rewards.scale,
        rewards.is_training,
        rewards.identity,
        min([1.0, *(one.ratio for one in problem.executions)]),
        tuple(made),
        measured(bench, distinct.groupings, run),
    )


def benched(
    bench: Workbench, policies: FusionPolicies, draws: int, run: RunOptions, *, is_held_out: bool
) -> FusionBench:
    """Measure a step as each policy fuses it, in turn with TVM's fusion, and unfused, and as random policies do.

    Args:
        bench: of the step.
        policies: learned ones.
        draws: of a random policy, which decides with the same probability as TVM's fusion, to inline, or to apply.
        run: how steps are timed.
        is_held_out: whether no policy has learned from the network.

    Raises:
        BadInputError: as `policy.grouping`.
        AutotmError: as `Workbench.compared`.
    """
    flow, features = bench.dataflow, Features(bench.dataflow, bench.machine.threads)
    by_name = {one.name: grouping(one, flow, features, bench.has_schedule) for one in policies.policies}
    by_name[UNFUSED] = Grouping.of([place] for place in range(len(flow.nodes)))
    by_name |= {f"{RANDOM}-{number}": _random(bench, number, run.seed) for number in range(draws)}
    distinct = _Distinct(bench)
    choices = {name: distinct.place(own) for name, own in by_name.items()}
    return FusionBench(
        bench.network.name,
        bench.scale,
        bench.network.training is not None,
        flow.identity,
        is_held_out,
        choices,
        measured(bench, distinct.groupings, run),
    )


class _Distinct:
    """Groupings, each once.

    Attributes:
        groupings: in the order in which they came.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._places: dict[tuple[tuple[str, Decision], ...], int] = {}
        self.groupings: list[Grouping] = []

    def place(self, own: Grouping) -> int:
        """Return the place of a grouping, which is added if it is new."""
        key = tuple(sorted(_decisions(self._bench, own).items()))
        if key not in self._places:
            self._places[key] = len(self.groupings)
            self.groupings.append(own)
        return self._places[key]


def measured(bench: Workbench, groupings: Sequence[Grouping], run: RunOptions) -> tuple[MeasuredGrouping, ...]:
    """Compile groupings, and measure all that compile in turn with TVM's fusion.

    Raises:
        AutotmError: as `Workbench.compared`.
    """
    compiled = bench.compiled_each(groupings)
    variants = [own for own in compiled if isinstance(own, Variant)]
    outcomes = iter(bench.compared(variants, run))
    found = []
    for own, variant in zip(groupings, compiled, strict=True):
        decisions = _decisions(bench, own)
        if isinstance(variant, AutotmError):
            found.append(MeasuredGrouping(decisions, None, None, None, str(variant)))
            continue
        outcome, graph = next(outcomes), variant.graph
        times, failure = (outcome, "") if isinstance(outcome, FusionTimes) else (None, str(outcome))
        found.append(MeasuredGrouping(decisions, len(graph.kernels), graph.peak_live_bytes, times, failure))
    return tuple(found)


def _random(bench: Workbench, number: int, seed: int) -> Grouping:
    draw, default = random.Random(f"{seed} {number}"), bench.dataflow.default  # noqa: S311 - no secret

    def choose(path: TreePath, _: object) -> Decision:
        return draw.choice([decision_at(default, path), Decision.INLINE, Decision.APPLY])

    return bench.resolved(choose).grouping


def _decisions(bench: Workbench, own: Grouping) -> dict[str, Decision]:
    return {path_text(bench.dataflow, path): decision for path, decision in executed(bench.dataflow, own).items()}


def _require_same(bench: Workbench, identity: str) -> None:
    if identity != bench.dataflow.identity:
        raise BadInputError(
            f"network {bench.network.name}: what was measured is of another step ({identity}, not "
            f"{bench.dataflow.identity}); delete its folder below results/*/{bench.scale}/fusion and run again"
        )
