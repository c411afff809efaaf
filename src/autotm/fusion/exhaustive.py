"""The best grouping of a step's operators: all are priced by sums of kernels, the cheapest are measured whole."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

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
from autotm.model.fusion import Decision, FusionOptimum, FusionTimes, GroupingTimes, Kind, RegionSearch
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.store import KernelStore
from autotm.runtime.step_times import RunOptions

_LOG = logging.getLogger(__name__)
_MOST_SETS = 300_000
"""Connected sets of a region's operators that are looked at: seconds of work. Few of them are convex."""
_MOST_STATES = 100_000
"""Sets of operators that can have been computed at a time: some seconds of work, some 100 MB."""


@dataclass
class _Region:
    """A region, those of the step that are like it, and the groups within."""

    region: Region
    alike: list[Region]
    groups: list[Group]
    failure: str = ""


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
    searched = _regions(bench, config.max_groups)
    drawn = [random_grouping(bench, random.Random(f"{run.seed} {number}")) for number in range(config.random)]  # noqa: S311
    unfused = Grouping.of([place] for place in range(len(flow.nodes)))
    fixed = [flow.default, unfused, *drawn]
    groups = [live for own in searched for group in own.groups if _can_be_kernel(bench, live := _live(flow, group))]
    groups += [live for grouping in fixed for live in _kernels(flow, grouping)]
    times = KernelTimes(bench, store, profile)
    times.add(groups)
    _LOG.info("%d kernels of %d groups timed alone", len(times), len({*groups}))

    for live, reason in times.failures.items():
        _LOG.warning("%s", _failure(flow, live, reason))

    def sum_s(grouping: Grouping) -> float:
        kernels = [*_kernels(flow, grouping)]
        times.add(kernels)  # Those of regions that are alike are other operators, though the same code.
        return math.fsum(map(times.seconds, kernels))

    default_sum_s = sum_s(flow.default)
    chosen = [(Kind.CHEAPEST, grouping) for grouping in _cheapest(flow, searched, times, config.best)]
    others = [(Kind.UNFUSED, unfused), *((Kind.RANDOM, grouping) for grouping in drawn)]
    chosen += [
        (kind, grouping) for kind, grouping in others if times.failures.keys().isdisjoint(_kernels(flow, grouping))
    ]
    chosen += [(Kind.DEFAULT, flow.default)] * config.copies
    variants = [bench.compiled(grouping) for _, grouping in chosen]
    outcomes = bench.compared(variants, replace(run, min_seconds=config.step_s))
    measured = tuple(
        GroupingTimes(
            kind,
            _decisions(flow, grouping),
            len(variant.graph.kernels),
            variant.graph.peak_live_bytes,
            sum_s(grouping),
            *((outcome, "") if isinstance(outcome, FusionTimes) else (None, str(outcome))),
        )
        for (kind, grouping), variant, outcome in zip(chosen, variants, outcomes, strict=True)
    )
    best = _fastest(measured)
    again = bench.compared([variants[best]], run)[0] if best >= 0 else None
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
                len(own.region.nodes),
                len(own.region.edges),
                len(own.alike),
                sum(_live(flow, group) in times for group in own.groups),
                own.failure,
            )
            for own in searched
        ),
        measured,
        best,
        None if isinstance(again, WrongResultError) else again,
        tuple(_failure(flow, live, reason) for live, reason in times.failures.items()),
    )


def _failure(flow: Dataflow, live: Live, reason: str) -> str:
    return f"{', '.join(flow.nodes[place].name for place in live.nodes)}: {reason}"


def _fastest(measured: Sequence[GroupingTimes]) -> int:
    """Return the place of the fastest grouping that is no copy of TVM's fusion; -1 where all were wrong."""
    ratios = {
        place: one.times.ratio
        for place, one in enumerate(measured)
        if one.times is not None and one.kind is not Kind.DEFAULT
    }
    return min(ratios, key=ratios.__getitem__, default=-1)


def _can_be_kernel(bench: Workbench, group: Live) -> bool:
    return len(group.nodes) == 1 or bench.has_schedule(group)


def _live(flow: Dataflow, group: Group) -> Live:
    """Return a group of which each node is computed there alone."""
    inside = {*group}
    results = tuple(
        place for place in group if place in flow.returned or any(one not in inside for one in flow.readers[place])
    )
    return Live(group, results)


def _kernels(flow: Dataflow, grouping: Grouping) -> Iterator[Live]:
    return (live for live in flow.live(grouping).values() if flow.nodes[live.nodes[0]].function is not None)


def _decisions(flow: Dataflow, grouping: Grouping) -> dict[str, Decision]:
    return {path_text(flow, path): own for path, own in executed(flow, grouping).items()}


def _regions(bench: Workbench, max_groups: int) -> list[_Region]:
    """Return the regions of two operators or more, each with those that have the same operators."""
    flow = bench.dataflow
    precedence = Precedence([node.reads for node in flow.nodes])
    default = flow.default.home
    edges = [
        (read, reader)
        for reader in flow.operators
        for read in flow.nodes[reader].reads
        if flow.nodes[read].function is not None
        and (default[read] == default[reader] or bench.has_schedule(_live(flow, (read, reader))))
    ]
    by_code: dict[str, _Region] = {}
    for region in regions(flow.operators, edges):
        if not region.edges:
            continue
        key = f"{function_hash(flow.primitive(_live(flow, region.nodes)))} {_shape(region)}"
        if key in by_code:
            by_code[key].alike.append(region)
            continue
        own = by_code[key] = _Region(region, [region], [])
        try:
            groups = list(convex_groups(region, precedence, _MOST_SETS))
        except TooManyError as error:
            own.failure = str(error)
            continue
        if len(groups) > max_groups:
            own.failure = f"{len(groups)} groups, of at most {max_groups} that are compiled"
        else:
            own.groups = groups
    return list(by_code.values())


def _shape(region: Region) -> list[tuple[int, int]]:
    """Return the edges of a region by the places of their nodes in it."""
    places = {node: place for place, node in enumerate(region.nodes)}
    return [(places[first], places[second]) for first, second in region.edges]


def _cheapest(flow: Dataflow, searched: Sequence[_Region], times: KernelTimes, count: int) -> Iterator[Grouping]:
    """Yield the groupings of least sums; regions that were not searched keep the groups of TVM's fusion."""
    precedence = Precedence([node.reads for node in flow.nodes])
    default = [group for group in flow.default.groups if flow.nodes[group[0]].function is not None]
    parts: list[list[Partition]] = []
    varied: list[_Region] = []
    for own in searched:
        if own.failure:
            continue
        prices = {group: times.seconds(live) for group in own.groups if (live := _live(flow, group)) in times}
        try:
            parts.append(list(islice(cheapest(own.region.nodes, prices, precedence, _MOST_STATES), count)))
        except TooManyError as error:
            own.failure = str(error)
        else:
            varied.append(own)
    free = {node for own in varied for region in own.alike for node in region.nodes}
    kept = [group for group in default if group[0] not in free]
    views = [(place,) for place, node in enumerate(flow.nodes) if node.function is None]
    found = 0
    for choice in combined(parts, [len(own.alike) for own in varied]):
        groups = [*kept, *views]
        for own, part, at in zip(varied, parts, choice, strict=True):
            for region in own.alike:
                other = dict(zip(own.region.nodes, region.nodes, strict=True))
                groups += [tuple(other[node] for node in group) for group in part[at].groups]
        grouping = Grouping.of(groups)
        try:
            flow.order(grouping)
        except CircleError:  # Groups of several regions read one another's values.
            continue
        yield grouping
        found += 1
        if found == count:
            return
