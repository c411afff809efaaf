"""Which fusions of TVM's cost a step time: each alone, off and in part, then the whole step without it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotm.fusion.dataflow import Dataflow, Grouping, Live
from autotm.fusion.partitions import Group, Precedence, Region, TooManyError, cheapest, convex_groups, regions
from autotm.fusion.pricing import KernelTimes
from autotm.fusion.variants import Variant, Workbench, WrongResultError
from autotm.kernels.compiler import Request, function_hash
from autotm.kernels.tir import extents, size_bytes
from autotm.model.fusion import AuditedFusion, FusionAudit, FusionTimes, RegroupedStep, Verdict
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.store import KernelStore
from autotm.runtime.step_times import RunOptions

_LOG = logging.getLogger(__name__)
_MOST_SETS = 40
"""Connected sets of a fusion's operators that are compiled and timed: a chain of eight has 36. Each takes 0.2 s."""
_MOST_STATES = 10_000
"""Sets of a fusion's operators that can have been computed at a time."""
_Z = 1.96
"""Standard errors on either side of a 95 % interval."""
Parts = tuple[Group, ...]
"""Kernels in place of a fused one, by the operators of each."""


@dataclass
class Fusion:
    """A fused kernel of TVM's, and what its operators could be computed by instead.

    Attributes:
        occurrences: by their index in the default grouping, the first one first; all have the same code.
        candidates: other kernels that can compute some of the first one's operators, single operators among them.
        cuts: other ways to share out all of them; empty where all are looked at.
    """

    occurrences: dict[int, Live]
    candidates: list[Group] = field(default_factory=list)
    cuts: list[Parts] = field(default_factory=list)

    @property
    def first(self) -> Live:
        """Its first occurrence."""
        return next(iter(self.occurrences.values()))

    @property
    def off(self) -> Parts:
        """A kernel for each operator of the first occurrence."""
        return tuple((node,) for node in self.first.nodes)


def audited(
    bench: Workbench, store: KernelStore, profile: ProfileOptions, run: RunOptions, *, most: int, step_s: float
) -> tuple[FusionAudit, dict[int, Live]]:
    """Return what each fusion by TVM does to a step, and the harmful ones by their places in the audit.

    Args:
        bench: of the step.
        store: keeps times of kernels.
        profile: how kernels are timed.
        run: how the step without the harmful fusions is timed.
        most: fusions that are measured as whole steps, those with the least gain by kernels alone first.
        step_s: for how long each of these steps is timed, s.

    Raises:
        AutotmError: as `Workbench.compared` and `KernelTimes.add`.
    """
    # 1. Find the fused kernels, and the kernels that could take their place.
    flow = bench.dataflow
    precedence = Precedence([node.reads for node in flow.nodes])
    fusions = fusions_of(bench)
    for fusion in fusions:
        _find_candidates(bench, precedence, fusion)

    # 2. Time all of these alone, and choose the cheapest others for each.
    times = KernelTimes(bench, store, profile)
    others = [flow.computed_apart(group) for fusion in fusions for group in fusion.candidates]
    times.add([*(fusion.first for fusion in fusions), *others])
    parts = [_cheapest_parts(flow, precedence, fusion, times) for fusion in fusions]
    alone = [_alone(bench, fusion, own, times) for fusion, own in zip(fusions, parts, strict=True)]
    order = sorted(range(len(fusions)), key=lambda at: -alone[at].gain_s)
    fusions, parts, alone = ([items[at] for at in order] for items in (fusions, parts, alone))
    _LOG.info("%d kernels of %d different fusions timed alone", len(times), len(fusions))

    # 3. Time the step without each fusion, in turn with the default.
    trials: list[tuple[int, str, Parts]] = []
    for at in range(min(most, len(fusions))):
        trials.append((at, "off", fusions[at].off))
        if alone[at].partial_s is not None:
            trials.append((at, "partial", parts[at]))
    quick = replace(run, min_seconds=step_s)
    steps = _measured(bench, fusions, trials, quick)
    found = [_judged(one, steps.get((at, "off")), steps.get((at, "partial"))) for at, one in enumerate(alone)]

    # 4. Time the harmful ones again, in a run of their own: of many steps some are fast by luck, and copies of the same
    #    code differ by where they are loaded.
    chosen = {at: fusions[at].off if one.remedy == "off" else parts[at] for at, one in enumerate(found) if one.remedy}
    again = _measured(bench, fusions, [(at, found[at].remedy, own) for at, own in chosen.items()], quick)
    for (at, _), step in again.items():
        found[at] = _confirmed(found[at], step)

    # 5. Time the step without all of them.
    harmful = [at for at, one in enumerate(found) if one.verdict is Verdict.HARMFUL]
    mended = None
    if harmful:
        variant = bench.compiled(regrouped(flow, {at: (fusions[at], chosen[at]) for at in harmful}))
        mended = _step(variant, *bench.compared([variant], run))
    default = bench.default.graph
    audit = FusionAudit(
        bench.network.name,
        bench.scale,
        bench.network.training is not None,
        flow.identity,
        len(flow.operators),
        len(default.kernels),
        default.peak_live_bytes,
        len(times),
        tuple(found),
        mended,
    )
    return audit, {at: fusions[at].first for at in harmful}


# Fused kernels, and kernels in their place.


def fusions_of(bench: Workbench) -> list[Fusion]:
    """Return the kernels of TVM's fusion that compute two operators or more; those with the same code are one."""
    flow = bench.dataflow
    by_code: dict[str, Fusion] = {}
    for index, live in flow.live(flow.default).items():
        if len(live.nodes) > 1:
            # Equal code whose operators read one another in another order would be cut elsewhere.
            places = {node: place for place, node in enumerate(live.nodes)}
            shape = [(places[first], places[second]) for first, second in _edges(flow, live.nodes)]
            key = f"{function_hash(flow.primitive(live))} {shape} {[places[node] for node in live.results]}"
            by_code.setdefault(key, Fusion({})).occurrences[index] = live
    return list(by_code.values())


def regrouped(flow: Dataflow, instead: Mapping[int, tuple[Fusion, Parts]]) -> Grouping:
    """Return TVM's grouping with other kernels in place of fusions, wherever they occur.

    Args:
        flow: of the step.
        instead: fusions, each with kernels in place of its first occurrence.
    """
    groups: list[Iterable[int]] = []
    replaced: dict[int, Parts] = {}
    for fusion, parts in instead.values():
        for index, live in fusion.occurrences.items():
            other = dict(zip(fusion.first.nodes, live.nodes, strict=True))
            replaced[index] = tuple(tuple(other[node] for node in part) for part in parts)
    for index, group in enumerate(flow.default.groups):
        if index not in replaced:
            groups.append(group)
            continue
        kept = {node for part in replaced[index] for node in part}
        groups += [*replaced[index], *([node] for node in group if node not in kept)]
    return Grouping.of(groups)


def _find_candidates(bench: Workbench, precedence: Precedence, fusion: Fusion) -> None:
    """Find the kernels that could compute a fusion's operators: all, or those of single cuts if these are too many."""
    flow, nodes = bench.dataflow, fusion.first.nodes
    region = Region(nodes, tuple(_edges(flow, nodes)))
    try:
        groups = [group for group in convex_groups(region, precedence, _MOST_SETS) if group != nodes]
        fusion.candidates = [group for group in groups if _is_kernel(bench, group)]
    except TooManyError:
        fusion.cuts = [own for own in _cuts(region, precedence) if all(_is_kernel(bench, part) for part in own)]
        fusion.candidates = [*dict.fromkeys([*fusion.off, *(part for own in fusion.cuts for part in own)])]


def _edges(flow: Dataflow, nodes: Group) -> Iterator[tuple[int, int]]:
    inside = {*nodes}
    return ((read, node) for node in nodes for read in flow.nodes[node].reads if read in inside)


def _is_kernel(bench: Workbench, group: Group) -> bool:
    return len(group) == 1 or bench.has_schedule(bench.dataflow.computed_apart(group))


def _cuts(region: Region, precedence: Precedence) -> Iterator[Parts]:
    """Yield for each node a cut behind it: what it depends on, with it, and the connected parts of the rest."""
    for node in region.nodes:
        first = tuple(one for one in region.nodes if one == node or precedence.before[node] >> one & 1)
        rest = [one for one in region.nodes if one not in first]
        if rest:
            edges = [edge for edge in region.edges if not {*edge} & {*first}]
            yield first, *(part.nodes for part in regions(rest, edges))


def _cheapest_parts(flow: Dataflow, precedence: Precedence, fusion: Fusion, times: KernelTimes) -> Parts:
    """Return the kernels with the least sum that could compute a fusion's operators instead of the fused one."""
    prices = {group: times.seconds(flow.computed_apart(group)) for group in fusion.candidates}
    if not fusion.cuts:
        try:
            return next(cheapest(fusion.first.nodes, prices, precedence, _MOST_STATES)).groups
        except TooManyError:
            fusion.cuts = [fusion.off]
    return min([fusion.off, *fusion.cuts], key=lambda own: math.fsum(prices[part] for part in own))


# What is told of each.


def _measured(
    bench: Workbench, fusions: Sequence[Fusion], trials: Sequence[tuple[int, str, Parts]], run: RunOptions
) -> dict[tuple[int, str], RegroupedStep]:
    """Return the step with one fusion replaced, by the fusion's place and what the replacement is called."""
    if not trials:
        return {}
    variants = bench.compiled_all([regrouped(bench.dataflow, {at: (fusions[at], own)}) for at, _, own in trials])
    outcomes = bench.compared(variants, run)
    return {
        (at, name): _step(variant, outcome)
        for (at, name, _), variant, outcome in zip(trials, variants, outcomes, strict=True)
    }


def _alone(bench: Workbench, fusion: Fusion, parts: Parts, times: KernelTimes) -> AuditedFusion:
    """Return what is known of a fusion before whole steps are measured."""
    flow = bench.dataflow

    def seconds(own: Parts) -> float:
        return math.fsum(times.seconds(flow.computed_apart(part)) for part in own)

    def names(group: Group) -> tuple[str, ...]:
        return tuple(flow.nodes[node].name for node in group)

    (facts,) = bench.compiler.make([Request(flow.primitive(fusion.first))])
    is_other = len(parts) < len(fusion.first.nodes)
    return AuditedFusion(
        names(fusion.first.nodes),
        tuple(extents(flow.nodes[node].function.params[-1]) for node in fusion.first.nodes),
        len(fusion.occurrences),
        times.seconds(fusion.first),
        seconds(fusion.off),
        seconds(parts) if is_other else None,
        tuple(map(names, parts)) if is_other else (),
        not fusion.cuts,
        _saved_bytes(flow, fusion.first),
        facts.kind,
    )


def _saved_bytes(flow: Dataflow, live: Live) -> int:
    """Return the bytes of values that a fused kernel does not write, and of those that it does not read back."""
    saved = 0
    for node in live.nodes:
        function, values = flow.nodes[node].function, len(flow.nodes[node].values)
        own = sum(map(size_bytes, function.params[-values:]))
        reads = sum(reader in live.nodes for reader in flow.readers[node])
        saved += own * (reads + (node not in live.results))
    return saved


def _step(variant: Variant, outcome: FusionTimes | WrongResultError) -> RegroupedStep:
    times, failure = (outcome, "") if isinstance(outcome, FusionTimes) else (None, str(outcome))
    return RegroupedStep(len(variant.graph.kernels), variant.graph.peak_live_bytes, times, failure)


def _judged(one: AuditedFusion, off: RegroupedStep | None, partial: RegroupedStep | None) -> AuditedFusion:
    """Return a fusion with the steps that were measured of it, and the verdict."""
    steps = {"off": off, "partial": partial}
    verdict, remedy = verdict_of({name: step.times for name, step in steps.items() if step and step.times})
    return replace(one, off=off, partial_step=partial, verdict=verdict, remedy=remedy)


def _confirmed(one: AuditedFusion, again: RegroupedStep) -> AuditedFusion:
    """Return a harmful fusion as it is if a second measurement says so, too, else as one that makes no difference."""
    verdict, _ = verdict_of({one.remedy: again.times} if again.times else {})
    if verdict is Verdict.HARMFUL:
        return replace(one, again=again)
    return replace(one, again=again, verdict=Verdict.NEUTRAL, remedy="")


def verdict_of(times: Mapping[str, FusionTimes]) -> tuple[Verdict, str]:
    """Return the verdict on a fusion, and which step is the faster if it is harmful.

    It is harmful if the step takes less without it, and helpful if the step takes more with it off, by more than the
    95 % intervals of the ratio and of the noise. A copy of TVM's fusion may be slower or faster than the first by
    chance, so a ratio has to lie beyond 1 as well.

    Args:
        times: of the step `off` and `partial`, as far as they were measured.
    """
    if not times:
        return Verdict.UNMEASURED, ""
    best = min(times, key=lambda name: times[name].ratio)
    if _limit(times[best], 1) < _noise(times[best], -1):
        return Verdict.HARMFUL, best
    if "off" in times and _limit(times["off"], -1) > _noise(times["off"], 1):
        return Verdict.HELPFUL, ""
    return Verdict.NEUTRAL, ""


def _limit(times: FusionTimes, side: int) -> float:
    """Return an end of the interval of a step's ratio."""
    return times.ratio * (1 + side * _Z * times.ratio_error)


def _noise(times: FusionTimes, side: int) -> float:
    """Return the end of the interval of the noise, or 1 if that is farther."""
    ends: Sequence[float] = (1.0, times.noise * (1 + side * _Z * times.noise_error))
    return max(ends) if side > 0 else min(ends)
