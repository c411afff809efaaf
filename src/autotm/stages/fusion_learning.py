"""Fusion decisions explained by rewards and learned by policies: one function for each rule, from file to file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotm.model.config import FusionConfig, RunConfig, SolveConfig
from autotm.model.files import load, require_writable, save
from autotm.model.fusion import FusionOptimum, FusionSearch
from autotm.model.fusion_policy import (
    FusionPolicies,
    FusionProblem,
    FusionPromises,
    FusionRewards,
)
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.provenance import provenance
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.fusion import OPTIMUM, POLICIES, SEARCH, bench_of
from autotm.stages.solve import options_of

if TYPE_CHECKING:
    from autotm.runtime.step_times import RunOptions

PROBLEM, REWARDS, PROMISES = "fusion_problem", "fusion_rewards", "fusion_promises"
SELECTION, BENCH, PLACEMENTS = "fusion_selection", "fusion_bench", "placements"
_LOG = logging.getLogger(__name__)


def fusion_problem_stage(
    context: Context,
    source: NetworkSource,
    graph: Path,
    paths: Paths,
    optimum: Path,
    searches: Mapping[str, Path],
    output: Path,
) -> None:
    """Write which groupings of a step were measured, and the features of their decisions.

    Args:
        context: of the machine.
        source: of the network.
        graph: file of the network, to be trained or not.
        paths: of the network.
        optimum: file of the rule `fusion_exhaustive`.
        searches: files of the rule `fusion_search`, by what they are called there.
        output: file of the problem.

    Raises:
        BadInputError: the files are of another step.
    """
    from autotm.fusion.judging import problem

    require_writable(output)
    bench = bench_of(context, graph, paths)
    found = problem(
        bench,
        load(optimum, OPTIMUM, FusionOptimum),
        {name: load(file, SEARCH, FusionSearch) for name, file in searches.items()},
    )
    save(output, PROBLEM, found, provenance(context.machine, context.seed, **source.provenance))


def fusion_rewards_stage(context: Context, problem: Path, output: Path) -> None:
    """Write what each decision of a step is worth, by every setting of the model.

    Raises:
        BadInputError: too few groupings were measured.
    """
    from autotm.fusion.learning import fitted

    require_writable(output)
    found = fitted(load(problem, PROBLEM, FusionProblem))
    save(output, REWARDS, found, provenance(context.machine, context.seed))


def fusion_promises_stage(
    context: Context,
    source: NetworkSource,
    graph: Path,
    config: FusionConfig,
    run: RunConfig,
    paths: Paths,
    problem: Path,
    rewards: Path,
    output: Path,
) -> None:
    """Measure the groupings that rewards ask for.

    Args:
        context: of the machine.
        source: of the network.
        graph: file of the network, to be trained or not.
        config: how long steps are timed.
        run: how.
        paths: of the network.
        problem: file of what was measured before.
        rewards: file of what was fitted to that.
        output: file of what is measured.

    Raises:
        BadInputError: the files are of another step.
        AutotmError: nothing can be compared or timed.
    """
    from autotm.fusion.judging import promises

    context = context.to_measure()
    require_writable(output)
    bench = bench_of(context, graph, paths)
    found = promises(
        bench,
        load(problem, PROBLEM, FusionProblem),
        load(rewards, REWARDS, FusionRewards),
        _options(context, config, run),
    )
    save(output, PROMISES, found, provenance(context.machine, context.seed, **source.provenance))


def fusion_policies_stage(
    context: Context,
    problems: Sequence[Path],
    rewards: Sequence[Path],
    promises: Sequence[Path],
    selection: Path,
    output: Path,
) -> None:
    """Write which settings of rewards are used, and the policies that are learned from them.

    Raises:
        BadInputError: there is nothing to learn from.
    """
    from autotm.fusion.learning import learned, selected

    for file in (selection, output):
        require_writable(file)
    origin = provenance(context.machine, context.seed)
    chosen = selected([load(file, PROMISES, FusionPromises) for file in promises])
    save(selection, SELECTION, chosen, origin)
    found = learned(
        [load(file, PROBLEM, FusionProblem) for file in problems],
        [load(file, REWARDS, FusionRewards) for file in rewards],
        chosen,
    )
    save(output, POLICIES, found, origin)


def fusion_bench_stage(
    context: Context,
    source: NetworkSource,
    graph: Path,
    config: FusionConfig,
    run: RunConfig,
    paths: Paths,
    policies: Path,
    output: Path,
    *,
    is_held_out: bool,
) -> None:
    """Measure a step as each policy fuses it.

    Args:
        context: of the machine.
        source: of the network.
        graph: file of the network, to be trained or not.
        config: how long steps are timed, and how many random policies beside them.
        run: how steps are timed.
        paths: of the network.
        policies: file of the policies.
        output: file of what is measured.
        is_held_out: whether no policy has learned from the network.

    Raises:
        BadInputError: the policies were learned from other features than there are now.
        AutotmError: nothing can be compared or timed.
    """
    from autotm.fusion.judging import benched

    context = context.to_measure()
    require_writable(output)
    bench = bench_of(context, graph, paths)
    found = benched(
        bench,
        load(policies, POLICIES, FusionPolicies),
        config.random_policies if is_held_out else 0,
        _options(context, config, run),
        is_held_out=is_held_out,
    )
    save(output, BENCH, found, provenance(context.machine, context.seed, **source.provenance))


def placements_stage(
    context: Context, config: FusionConfig, solving: SolveConfig, inputs: PlacementInputs, output: Path
) -> None:
    """Write how near searches and rewards come to the placement of least time; times are predicted.

    Raises:
        InfeasibleLimitError: nothing keeps the limit.
    """
    from autotm.fusion.placements import searched

    require_writable(output)
    step, times, copies = inputs.read(context.counts)
    found = searched(
        step,
        times,
        copies,
        config.placed_limit,
        options_of(context, solving),
        evaluations=config.placements,
        seeds=config.search_seeds,
    )
    save(output, PLACEMENTS, found, provenance(context.machine, context.seed))


def _options(context: Context, config: FusionConfig, run: RunConfig) -> RunOptions:
    from autotm.runtime.step_times import RunOptions

    return RunOptions(**{**run.model_dump(), "min_seconds": config.step_s}, seed=context.seed)
