"""How large placement programs are, how long they take, and how good and how packable their plans are.

    python benchmarks/solver.py                                       # all paper networks, modelled costs: hours
    python benchmarks/solver.py --networks densenet264 --ratios 4:1   # one network
    python benchmarks/solver.py --ratios 79:1 99:1 --gaps 0.01        # tight corners
    python benchmarks/solver.py --profile results/laptop-2t/laptop/inception_v4/profile.parquet
    python benchmarks/solver.py --published 300                       # beside it the program as published, 300 s each

One line per network, optimizer, ratio and gap, each in a process of its own, so that its peak memory is its own.
Columns: size of the integer program after reductions (`-` where these leave nothing); seconds to build it and to reach
the gap; the plan's gap to the bound that its certificate proves; what the offsets need beyond the live peak in fast and
slow memory, and seconds to pack them; seconds of the whole solve, by the clock and of the processor; peak memory of the
process, graph and profile included; the load of the machine before it.
Where the offsets exceed the limit, the plan is solved again until they do not, as rule ilp_solve does; build, solve and
the whole then count all attempts.
Kernel times are modelled (benchmarks/modelled_profile.py) unless `--profile` gives measured ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path

from autotm.check.plan import check_plan
from autotm.layout.packing import Blocks, layout_of
from autotm.model.files import load
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import Plan
from autotm.solve.options import SolveOptions, optimizer_names
from autotm.solve.placing import export, fits, solve, solve_and_pack
from modelled_profile import modelled_links, modelled_profile
from published_formulation import Instance, solve_published
from zoo_graphs import zoo_graph

NETWORKS = ("vgg19", "inception_v4", "resnet200", "densenet264", "vgg416")
OPTIMIZERS = ("static", "synchronous", "asynchronous")


@dataclass(frozen=True)
class Row:
    """What one line measures; `profile` is a measured one beside its graph, else times are modelled."""

    network: str
    optimizer: str
    limit: str
    gap: float
    scale: str
    cache: Path
    profile: Path | None = None
    tables: bool = False
    time_limit_s: float = 60.0
    published_s: float = 0.0
    reach: int = 15


@dataclass(frozen=True)
class Line:
    """One line of the table, as text; the fields' names are its head."""

    network: str
    kernels: int
    optimizer: str
    limit: str
    asked: str
    columns: str
    rows: str
    nonzeros: str
    build_s: str
    solve_s: str
    gap: str
    status: str
    step_ms: str
    fast_excess: str
    slow_excess: str
    pack_s: str
    total_s: str
    cpu_s: str
    peak_mb: str
    published: str
    load: str

    def text(self) -> str:
        """Right-aligned under the head."""
        return " ".join(str(getattr(self, f.name)).rjust(_WIDTHS[f.name]) for f in fields(self))


_WIDTHS = {f.name: max(len(f.name), 7) for f in fields(Line)} | {
    "network": 16,
    "optimizer": 12,
    "status": 10,
    "published": 20,
}


def main() -> None:
    """Measure the rows asked for and print the table."""
    asked = _parser().parse_args()
    print(f"kernel times: {'measured, ' + str(asked.profile) if asked.profile else 'modelled'}")
    print(" ".join(f.name.rjust(_WIDTHS[f.name]) for f in fields(Line)))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        for row in _rows(asked):
            print(processes.submit(measure, row).result().text(), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--scale", default="paper", help="sizes of the networks (%(default)s)")
    parser.add_argument("--optimizers", nargs="+", default=[name for name in OPTIMIZERS if name in optimizer_names()])
    parser.add_argument("--ratios", nargs="+", default=["8:1", "4:1", "1:1"], help="limits (%(default)s)")
    parser.add_argument("--gaps", nargs="+", type=float, default=[0.01, 0.001], help="shares (%(default)s)")
    parser.add_argument("--tables", action="store_true", help="kernel times that no sum of single costs predicts")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="of a solve (%(default)s)")
    parser.add_argument("--published", type=float, default=0.0, metavar="SECONDS", help="try the published program too")
    parser.add_argument("--reach", type=int, default=15, help="reach of its asynchronous moves, kernels (%(default)s)")
    parser.add_argument("--profile", type=Path, help="measured: results/MACHINE/SCALE/NETWORK/profile.parquet")
    cache = Path(tempfile.gettempdir()) / "autotm-graphs"
    parser.add_argument("--cache", type=Path, default=cache, help="where lowered steps are kept (%(default)s)")
    return parser


def _rows(asked: argparse.Namespace) -> Iterator[Row]:
    networks = [asked.profile.parent.name] if asked.profile else asked.networks
    for network in networks:
        for optimizer in asked.optimizers:
            for ratio in asked.ratios:
                for number, gap in enumerate(asked.gaps):
                    row = Row(network, optimizer, ratio, gap, asked.scale, asked.cache, asked.profile, asked.tables)
                    published_s = asked.published if number == 0 else 0.0
                    yield replace(
                        row,
                        time_limit_s=asked.time_limit,
                        published_s=published_s,
                        reach=asked.reach,
                    )


def instance_of(row: Row) -> Instance:
    """Step, times and links of a row."""
    if row.profile:
        from autotm.model.profile import read_profile  # noqa: PLC0415 - brings 30 MB that other rows do not need

        links = load(row.profile.parents[2] / "links.json", "links", Links)
        return Instance(load(row.profile.parent / "graph.json", "graph", Graph), read_profile(row.profile), links)
    graph = zoo_graph(row.network, row.scale, row.cache)
    return Instance(graph, modelled_profile(graph, tables=row.tables), modelled_links())


def measure(row: Row) -> Line:
    """Solve, check, pack; everything in this process."""
    load_before = os.getloadavg()[0]
    case, limit = instance_of(row), Limit.parse(row.limit)
    options = SolveOptions(gap=row.gap, time_limit_s=row.time_limit_s)
    started, cpu_started = time.perf_counter(), time.process_time()
    plan = solve(case.graph, case.profile, case.links, row.optimizer, limit, options)
    total_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    started = time.perf_counter()
    layout = layout_of(case.graph, plan)
    pack_s = time.perf_counter() - started
    if not fits(plan, layout):
        started, cpu_started = time.perf_counter(), time.process_time()
        plan, layout = solve_and_pack(case.graph, case.profile, case.links, row.optimizer, limit, options)
        total_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    check_plan(case.graph, case.profile, case.links, plan)
    chosen = plan.step_of(case.graph)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    size = export(case.graph, case.profile, case.links, row.optimizer, limit, options)
    return Line(
        network=row.network,
        kernels=len(case.graph.kernels),
        optimizer=row.optimizer,
        limit=row.limit,
        asked=_percent(row.gap),
        columns=str(size.columns or "-"),
        rows=str(size.rows or "-"),
        nonzeros=str(size.nonzeros or "-"),
        build_s=f"{plan.build_s:.2f}",
        solve_s=f"{plan.solve_s:.2f}",
        gap=_percent(plan.gap),
        status=plan.status,
        step_ms=f"{plan.objective_us / 1e3:.1f}",
        fast_excess=_excess(chosen, plan, Tier.FAST, layout.fast_bytes),
        slow_excess=_excess(chosen, plan, Tier.SLOW, layout.slow_bytes),
        pack_s=f"{pack_s:.2f}",
        total_s=f"{total_s:.2f}",
        cpu_s=f"{cpu_s:.2f}",
        peak_mb=f"{peak_mb:.0f}",
        published=_published(case, plan, row) if row.published_s else "",
        load=f"{load_before:.1f}",
    )


def _excess(graph: Graph, plan: Plan, tier: Tier, needed_bytes: int) -> str:
    peak = Blocks.of(graph, [stay for stay in plan.stays if stay.tier is tier]).peak_bytes
    return _percent(needed_bytes / peak - 1) if peak else "-"


def _published(case: Instance, plan: Plan, row: Row) -> str:
    """Step time, gap and seconds of the published program at the row's gap, or that it found nothing in time."""
    started = time.perf_counter()
    published = solve_published(
        case,
        plan.dram_limit_bytes,
        moves=plan.optimizer != "static",
        reach=row.reach if plan.optimizer == "asynchronous" else 0,
        gap=row.gap,
        time_limit_s=row.published_s,
    )
    seconds = time.perf_counter() - started
    if (time_us := published.objective_us) is None or published.bound_us is None:
        return f"nothing in {seconds:.0f}s"
    return f"{time_us / 1e3:.0f}ms {_percent(1 - published.bound_us / time_us)} in {seconds:.0f}s"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


if __name__ == "__main__":
    main()
