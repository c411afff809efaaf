"""The best grouping of a step's operators: all are priced by sums of kernels, the cheapest are measured whole."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from autotm.fusion.dataflow import CircleError, Dataflow, Grouping, Live
from autotm.fusion.decisions import executed, path_text
from autotm.fusion.moves import random_grouping
from autotm.fusion.partitions import (
    Group,
    Partition,
    Precedence,
    Region,
    TooManyError,
    cheapest,
    combined,
    convex_groups,
    regions,
)
from autotm.fusion.pricing import KernelTimes
from autotm.fusion.variants import Workbench, WrongResultError
from autotm.kernels.compiler import function_hash
from autotm.model.config import FusionConfig
from autotm.model.fusion import FusionOptimum, FusionTimes, GroupingTimes, Kind, RegionSearch
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.store import KernelStore
from autotm.runtime.step_times import RunOptions

_LOG = logging.getLogger(__name__)
_MOST_SETS = 300_000
"""Connected sets of a region's operators that are looked at: seconds of work. Few of them are convex."""
_MOST_STATES = 100_000
"""Sets of operators that can have been computed at a time: some seconds of work, some 100 MB."""


_MOST_COMBINATIONS = 10_000
"""Combinations of regions' partitions that are looked at; each takes a millisecond or so. Where kernels of several
regions read one another's values, nearly all may be impossible."""

_LONGER = 10
"""The best of the measured groupings is timed again for so many times as long: it may have been the luckiest."""


@dataclass
class _Region:
    """Regions of the same operators, and what is looked at of the first of them.

    Attributes:
        first: of the regions.
        alike: all of them.
        groups: of the first one's operators, that one kernel may compute.
        partitions: of the first one's operators into groups, the cheapest first.
        failure: why all keep the groups of TVM's fusion.
    """

    first: Region
    alike: list[Region]
    groups: list[Group] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)
    failure: str = ""

    def groups_everywhere(self, choice: int) -> Iterator[Group]:
        """Yield the groups of a partition, in each of the regions."""
        for region in self.alike:
            counterpart = dict(zip(self.first.nodes, region.nodes, strict=True))
            yield from (tuple(counterpart[node] for node in group) for group in self.partitions[choice].groups)


def optimum(
    bench: Workbench, store: KernelStore, config: FusionConfig, profile: ProfileOptions, run: RunOptions
) -> FusionOptimum:
    """Return how far TVM's fusion of a step is from the best grouping.

    Args:
        bench: of the step.
        store: keeps times of kernels.
        config: how much is searched, and measured.
        profile: how kernels are timed.
        run: how steps are timed.

    Raises:
        AutotmError: as `Workbench.compared` and `KernelTimes.add`; a kernel of TVM's fusion cannot be compiled.
    """
    flow = bench.dataflow
    precedence = Precedence([node.reads for node in flow.nodes])
    searched = _regions(bench, precedence, config.max_groups)
    others = _others(bench, config, run.seed)
    times = KernelTimes(bench, store, profile)
    groups = [flow.computed_apart(group) for region in searched for group in region.groups]
    kernels = _computable(bench, groups)
    for grouping in (flow.default, *(grouping for _, grouping in others)):
        kernels += _kernels(flow, grouping)
    times.add(kernels)
    _LOG.info("%d kernels timed alone", len(times))
    for failure in times.failures.values():
        _LOG.warning("%s", failure)
    default_sum_s = _sum_s(flow, times, flow.default)
    for region in searched:
        _partition(flow, region, times, precedence, config.best)
    chosen = [(Kind.CHEAPEST, grouping) for grouping in _cheapest(flow, searched, config.best)]
    failed = times.failures.keys()
    chosen += [(kind, grouping) for kind, grouping in others if failed.isdisjoint(_kernels(flow, grouping))]
    measured, best, best_times = _measured(bench, times, chosen, config.step_s, run)
    default = bench.default.graph
    return FusionOptimum(
        bench.network.name,
        bench.scale,
        bench.network.training is not None,
        flow.identity,
        len(flow.operators),
        len(default.kernels),
        default.peak_live_bytes,
        default_sum_s,
        len(times),
        tuple(
            RegionSearch(
                len(region.first.nodes),
                len(region.first.edges),
                len(region.alike),
                sum(flow.computed_apart(group) in times for group in region.groups),
                region.failure,
            )
            for region in searched
        ),
        measured,
        best,
        best_times,
        tuple(times.failures.values()),
    )


def _others(bench: Workbench, config: FusionConfig, seed: int) -> list[tuple[Kind, Grouping]]:
    """Return the groupings that are measured beside the cheapest, whatever their kernels take."""
    flow = bench.dataflow
    draws = [random.Random(f"{seed} {number}") for number in range(config.random)]  # noqa: S311
    # Copies are not the last: in a round TVM's fusion follows the last, and would find a copy's data in the caches.
    return [
        *[(Kind.DEFAULT, flow.default)] * config.copies,
        (Kind.UNFUSED, Grouping.of([place] for place in range(len(flow.nodes)))),
        *((Kind.RANDOM, random_grouping(bench, draw)) for draw in draws),
    ]


def _sum_s(flow: Dataflow, times: KernelTimes, grouping: Grouping) -> float:
    kernels = [*_kernels(flow, grouping)]
    times.add(kernels)  # Those of regions that are alike are other operators, though the same code.
    return math.fsum(map(times.seconds, kernels))


def _measured(
    bench: Workbench, times: KernelTimes, chosen: Sequence[tuple[Kind, Grouping]], step_s: float, run: RunOptions
) -> tuple[tuple[GroupingTimes, ...], int, FusionTimes | None]:
    """Measure groupings whole, in turn; return their times, the place of the best, and its times in a second run."""
    flow = bench.dataflow
    variants = bench.compiled_all([grouping for _, grouping in chosen])
    outcomes = bench.compared(variants, replace(run, min_seconds=step_s))
    measured = tuple(
        GroupingTimes(
            kind,
            {path_text(flow, path): decision for path, decision in executed(flow, grouping).items()},
            len(variant.graph.kernels),
            variant.graph.peak_live_bytes,
            _sum_s(flow, times, grouping),
            *((outcome, "") if isinstance(outcome, FusionTimes) else (None, str(outcome))),
        )
        for (kind, grouping), variant, outcome in zip(chosen, variants, outcomes, strict=True)
    )
    best = _fastest(measured)
    longer = replace(run, min_seconds=_LONGER * step_s)
    again = bench.compared([variants[best]], longer)[0] if best >= 0 else None
    return measured, best, None if isinstance(again, WrongResultError) else again


def _fastest(measured: Sequence[GroupingTimes]) -> int:
    """Return the place of the fastest grouping that is no copy of TVM's fusion; -1 where all were wrong."""
    ratios = {
        place: one.times.ratio
        for place, one in enumerate(measured)
        if one.times is not None and one.kind is not Kind.DEFAULT
    }
    return min(ratios, key=ratios.__getitem__, default=-1)


def _computable(bench: Workbench, groups: Sequence[Live]) -> list[Live]:
    """Return the groups that one kernel can compute."""
    alone = [group for group in groups if len(group.nodes) == 1]
    return alone + bench.has_schedule.among(group for group in groups if len(group.nodes) > 1)


def _kernels(flow: Dataflow, grouping: Grouping) -> Iterator[Live]:
    return (live for live in flow.live(grouping).values() if flow.nodes[live.nodes[0]].function is not None)


def _regions(bench: Workbench, precedence: Precedence, max_groups: int) -> list[_Region]:
    """Return the regions of two operators or more, each with those that have the same operators."""
    flow = bench.dataflow
    default = flow.default.home
    edges = [
        (read, reader)
        for reader in flow.operators
        for read in flow.nodes[reader].reads
        if flow.nodes[read].function is not None
        and (default[read] == default[reader] or bench.has_schedule(flow.computed_apart((read, reader))))
    ]
    by_code: dict[str, _Region] = {}
    for region in regions(flow.operators, edges):
        if not region.edges:
            continue
        key = f"{function_hash(flow.primitive(flow.computed_apart(region.nodes)))} {_shape(region)}"
        if key in by_code:
            by_code[key].alike.append(region)
            continue
        new = by_code[key] = _Region(region, [region])
        try:
            groups = list(convex_groups(region, precedence, _MOST_SETS))
        except TooManyError as error:
            new.failure = str(error)
            continue
        if len(groups) > max_groups:
            new.failure = f"{len(groups)} groups, of at most {max_groups} that are compiled"
        else:
            new.groups = groups
    return list(by_code.values())


def _shape(region: Region) -> list[tuple[int, int]]:
    """Return the edges of a region by the places of their nodes in it."""
    places = {node: place for place, node in enumerate(region.nodes)}
    return [(places[first], places[second]) for first, second in region.edges]


def _partition(flow: Dataflow, region: _Region, times: KernelTimes, precedence: Precedence, count: int) -> None:
    """Find the cheapest partitions of a region into groups whose times are known, or say why there are too many."""
    if region.failure:
        return
    prices = {group: times.seconds(live) for group in region.groups if (live := flow.computed_apart(group)) in times}
    try:
        region.partitions = list(islice(cheapest(region.first.nodes, prices, precedence, _MOST_STATES), count))
    except TooManyError as error:
        region.failure = str(error)


def _cheapest(flow: Dataflow, searched: Sequence[_Region], count: int) -> list[Grouping]:
    """Return the groupings of least sums; regions that were not searched keep the groups of TVM's fusion.

    TVM's fusion is one of them if they are fewer than `count`: too many combinations had kernels that read one
    another's values.
    """
    varied = [region for region in searched if not region.failure]
    free = {node for each in varied for region in each.alike for node in region.nodes}
    kept = [group for group in flow.default.groups if group[0] not in free]
    choices = combined([region.partitions for region in varied], [len(region.alike) for region in varied])
    found: list[Grouping] = []
    for choice in islice(choices, _MOST_COMBINATIONS):
        parts = [region.groups_everywhere(at) for region, at in zip(varied, choice, strict=True)]
        grouping = Grouping.of([*kept, *chain.from_iterable(parts)])
        if _is_acyclic(flow, grouping):
            found.append(grouping)
        if len(found) == count:
            return found
    if {*flow.default.groups} not in [{*grouping.groups} for grouping in found]:
        found.append(flow.default)
    return found


def _is_acyclic(flow: Dataflow, grouping: Grouping) -> bool:
    """Return whether no kernels, of several regions, read one another's values."""
    try:
        flow.order(grouping)
    except CircleError:
        return False
    return True
