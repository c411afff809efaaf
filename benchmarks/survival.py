"""Whether every limit gets a plan, whatever kernels take: networks x perturbed profiles x limits x optimizers.

    python benchmarks/survival.py                                  # everything, modelled times: an hour or two
    python benchmarks/survival.py --results results/laptop-2t      # measured profiles, where there are any
    python benchmarks/survival.py --networks vgg19 --limits 19:1 --optimizers static --draws 1

A drawn profile multiplies all times of a kernel's implementation by one lognormal factor of the given deviation, so
that other sets of tensors become the best ones, and have to be packed. Every solve is that of rule ilp_solve, packing
included, and is checked. The table sums up a network and an optimizer per line: plans that came out and were accepted;
those within the asked gap; attempts (a further one where the offsets did not fit); seconds of the median and of the
slowest whole solve; what a whole solve took in units of its first attempt, packing included, in the median, at 99 % and
at most; excess of the offsets over the live peak in fast memory, likewise; seconds of the slowest first packing.
What failed is listed below the table with its reason, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import Blocks, layout_of
from autotm.model.files import load
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import Links
from autotm.model.profile import Profile, Timing, read_profile
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve, solve_and_pack
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph

NETWORKS = ("vgg19", "inception_v4", "resnet200", "densenet264", "vgg416")
LIMITS = ("199:1", "99:1", "59:1", "39:1", "29:1", "19:1", "9:1", "4:1", "1:1")
OPTIMIZERS = ("static", "synchronous", "asynchronous")
DEVIATIONS = (0.05, 0.2)


@dataclass(frozen=True)
class Case:
    """One solve; `results` holds measured profiles of the scale, else times are modelled."""

    network: str
    optimizer: str
    limit: str
    deviation: float
    draw: int
    scale: str
    cache: Path
    results: Path | None
    gap: float
    time_limit_s: float


@dataclass(frozen=True)
class Outcome:
    """What a case ended with; `fault` is empty where the plan was accepted."""

    case: Case
    fault: str = ""
    gap: float = math.nan
    attempts: int = 0
    first_s: float = math.nan
    whole_s: float = math.nan
    pack_s: float = math.nan
    excess: float = math.nan


def main() -> int:
    """Solve all cases, print the table and what failed."""
    asked = _parser().parse_args()
    print(f"kernel times: {f'measured, {asked.results}' if asked.results else 'modelled'}; scale {asked.scale}")
    outcomes: list[Outcome] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, mp_context=spawn) as processes:
        for outcome in processes.map(survive, _cases(asked), chunksize=9):
            outcomes.append(outcome)
            if asked.each:
                print(_line(outcome), flush=True)
    print(_table(outcomes, asked.gap))
    failed = [outcome for outcome in outcomes if outcome.fault]
    for outcome in failed:
        print(f"FAILED {_name(outcome.case)}: {outcome.fault}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS)
    parser.add_argument("--limits", nargs="+", default=LIMITS)
    parser.add_argument("--deviations", nargs="+", type=float, default=DEVIATIONS, help="of a factor's logarithm")
    parser.add_argument("--draws", type=int, default=3, help="profiles of each deviation (%(default)s)")
    parser.add_argument("--gap", type=float, default=0.01, help="asked (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="of a solve (%(default)s)")
    parser.add_argument("--scale", default="laptop", help="sizes of the networks (%(default)s)")
    parser.add_argument("--results", type=Path, help="measured profiles: results/MACHINE, beside its links.json")
    parser.add_argument("--processes", type=int, default=1, help="solves side by side; more make them slower")
    parser.add_argument("--each", action="store_true", help="print a line for every solve")
    graphs = Path(tempfile.gettempdir()) / "autotm-graphs"
    parser.add_argument("--cache", type=Path, default=graphs, help="where lowered steps are kept (%(default)s)")
    return parser


def _cases(asked: argparse.Namespace) -> Iterator[Case]:
    many = product(asked.networks, asked.optimizers, asked.deviations, range(asked.draws), asked.limits)
    for network, optimizer, deviation, draw, limit in many:
        places = (asked.scale, asked.cache, asked.results)
        yield Case(network, optimizer, limit, deviation, draw, *places, asked.gap, asked.time_limit)


def survive(case: Case) -> Outcome:
    """Solve, pack, check; an exception of any kind is a fault."""
    try:
        return _solved(case)
    except Exception as error:  # noqa: BLE001 - to be reported, whatever it is
        return Outcome(case, f"{type(error).__name__}: {error}")


def _solved(case: Case) -> Outcome:
    graph, measured, links = _given(case.network, case.scale, case.cache, case.results)
    profile, limit = perturbed(measured, case.deviation, case.draw), Limit.parse(case.limit)
    options = SolveOptions(gap=case.gap, time_limit_s=case.time_limit_s)
    started = time.perf_counter()
    first = solve(graph, profile, links, case.optimizer, limit, options)
    solved = time.perf_counter()
    layout = layout_of(graph, first)
    packed = time.perf_counter()
    plan = replace(first, offsets=layout.offsets)
    whole_s = packed - started
    if not fits(first, layout):
        plan, layout = solve_and_pack(graph, profile, links, case.optimizer, limit, options)
        whole_s = time.perf_counter() - packed
    check_plan(graph, profile, links, plan)
    check_program(graph, plan, compile_program(graph, plan, layout))
    chosen = plan.step_of(graph)
    peak = Blocks.of(chosen, [stay for stay in plan.stays if stay.tier is Tier.FAST]).peak_bytes
    excess = layout.fast_bytes / peak - 1 if peak else 0.0
    first_s = packed - started
    return Outcome(case, "", plan.gap, len(plan.attempts_s), first_s, whole_s, packed - solved, excess)


@cache
def _given(network: str, scale: str, graphs: Path, results: Path | None) -> tuple[Graph, Profile, Links]:
    if results is None:
        graph = zoo_graph(network, scale, graphs)
        return graph, modelled_profile(graph), modelled_links()
    folder = results / scale / network
    graph = counting(load(folder / "graph.json", "graph", Graph), Counts.INTERMEDIATES)
    return graph, read_profile(folder / "profile.parquet"), load(results / "links.json", "links", Links)


def perturbed(profile: Profile, deviation: float, draw: int) -> Profile:
    """Return the profile with all times of each kernel's implementation multiplied by one lognormal factor."""
    drawn = random.Random(f"{deviation} {draw}")  # noqa: S311 - noise, not a secret
    implementations = sorted({key[:2] for key in profile.timings})
    factors = {implementation: drawn.lognormvariate(0, deviation) for implementation in implementations}
    return replace(profile, timings={key: _scaled(timing, factors[key[:2]]) for key, timing in profile.timings.items()})


def _scaled(timing: Timing, factor: float) -> Timing:
    times = {field.name: getattr(timing, field.name) for field in fields(timing) if field.name.endswith("_ns")}
    return replace(timing, **{name: round(factor * ns) for name, ns in times.items() if ns is not None})


def _name(case: Case) -> str:
    return f"{case.network} {case.optimizer} {case.limit}, {case.deviation:.0%} draw {case.draw}"


def _line(outcome: Outcome) -> str:
    if outcome.fault:
        return f"{_name(outcome.case)}: {outcome.fault}"
    return (
        f"{_name(outcome.case)}: gap {outcome.gap:.3%}, {outcome.attempts} attempts, {outcome.whole_s:.2f} s "
        f"(first {outcome.first_s:.2f} s, packing {outcome.pack_s:.2f} s), offsets {outcome.excess:+.3%}"
    )


def _table(outcomes: Sequence[Outcome], gap: float) -> str:
    head = "network        optimizer     plans   in gap  again  median_s   max_s  x first: median   99 %    max"
    lines = [f"{head}  excess: 99 %     max  pack_s"]
    groups = dict.fromkeys((outcome.case.network, outcome.case.optimizer) for outcome in outcomes)
    for network, optimizer in groups:
        members = [each for each in outcomes if (each.case.network, each.case.optimizer) == (network, optimizer)]
        lines.append(_summary(network, optimizer, members, gap))
    return "\n".join([*lines, _summary("all", "", outcomes, gap)])


def _summary(network: str, optimizer: str, members: Sequence[Outcome], gap: float) -> str:
    solved = [each for each in members if not each.fault]
    if not solved:
        return f"{network:14} {optimizer:12} 0/{len(members)}"
    times = np.array([each.whole_s / each.first_s for each in solved])
    whole_s, excess = [each.whole_s for each in solved], [100 * each.excess for each in solved]
    within, again = sum(each.gap <= gap for each in solved), sum(each.attempts > 1 for each in solved)
    return (
        f"{network:14} {optimizer:12} {f'{len(solved)}/{len(members)}':>8} {within / len(solved):7.1%} {again:6d} "
        f"{np.median(whole_s):9.2f} {max(whole_s):7.2f} {np.median(times):16.2f} {np.percentile(times, 99):6.2f} "
        f"{times.max():6.2f} {np.percentile(excess, 99):11.3f} % {max(excess):6.3f} % "
        f"{max(each.pack_s for each in solved):5.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
