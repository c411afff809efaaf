"""How many plans their certificates prove within the asked gap.

    python benchmarks/certificates.py                                # the figures' plans, modelled costs
    python benchmarks/certificates.py --networks vgg19 --limits 4:1  # some of them
    python benchmarks/certificates.py --results results/laptop-2t/laptop   # plans of a study, from measured profiles

One line per network and optimizer. Columns: plans that are optimized; those that the certificate proves within the
gap; those that are within it by the solver's claim only; raised bounds that were refused (each plan's, raised by 0.1 %
of its objective); seconds of all solves, and the longest; largest certificate; longest check. Plans above the gap are
named below the table.
Kernel times are modelled (benchmarks/modelled_profile.py) unless `--results` gives plans that are there already.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotm.check.fault import FaultError
from autotm.check.plan import check_plan
from autotm.model.files import load
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.links import Links
from autotm.model.plan import Plan, Status
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from modelled_profile import modelled_links, modelled_profile
from published_formulation import Instance
from zoo_graphs import zoo_graph

NETWORKS = ("vgg19", "inception_v4", "resnet200", "densenet264", "vgg416")
LIMITS = (
    "1:0", "99:1", "79:1", "59:1", "39:1", "19:1", "9:1", "8:1", "7:1", "6:1", "5:1", "4:1", "3:1", "5:2", "2:1", "1:1",
    "1:2", "1:3", "0:1",
)  # fmt: skip
"""Limits of figures 7 to 11; every network is solved at each."""
BESIDE = ("4:1", "1:1")
"""Limits at which figure 11 has asynchronous moves."""
_RAISED_BY = 1e-3


@dataclass(frozen=True)
class Verdict:
    """What a plan's certificate proves."""

    limit: str
    gap: float
    proven: bool
    claimed: bool
    refused: bool
    solve_s: float
    check_s: float
    size_bytes: int


def main() -> None:
    """Solve or read the plans, check them, and print the table."""
    asked = _parser().parse_args()
    head = "plans proven claimed_only refused solve_s longest_s largest_kb check_s"
    print("network        optimizer    ", *(name.rjust(12) for name in head.split()))
    missed, all_verdicts = [], []
    for network, optimizer, plans in _groups(asked):
        verdicts = [_verdict(case, plan, asked.gap) for case, plan in plans if plan.status is not Status.NOT_OPTIMIZED]
        if verdicts:
            print(network.ljust(14), optimizer.ljust(13), *(text.rjust(12) for text in _cells(verdicts)), flush=True)
        all_verdicts += verdicts
        missed += [f"{network} {optimizer} {one.limit}: {one.gap:.2%}" for one in verdicts if not one.proven]
    if all_verdicts:
        print("all".ljust(14), " " * 13, *(text.rjust(12) for text in _cells(all_verdicts)))
    print(f"not proven within {asked.gap:.2%}:", "; ".join(missed) or "none")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--scale", default="paper", help="sizes of the networks (%(default)s)")
    parser.add_argument("--optimizers", nargs="+", default=("static", "synchronous", "asynchronous"))
    parser.add_argument("--limits", nargs="+", default=LIMITS)
    parser.add_argument("--gap", type=float, default=0.01, help="asked of each plan (%(default)s)")
    parser.add_argument("--noise", type=float, default=0.0, help="of single modelled costs, logarithmic (%(default)s)")
    parser.add_argument("--tables", action="store_true", help="kernel times that no sum of single costs predicts")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="of a solve (%(default)s)")
    parser.add_argument("--results", type=Path, help="folder of networks with plans: results/MACHINE/SCALE")
    cache = Path(tempfile.gettempdir()) / "autotm-graphs"
    parser.add_argument("--cache", type=Path, default=cache, help="where lowered steps are kept (%(default)s)")
    return parser


def _groups(asked: argparse.Namespace) -> Iterator[tuple[str, str, Iterator[tuple[Instance, Plan]]]]:
    if asked.results:
        for graph in sorted(asked.results.glob("*/graph.json")):
            case = _measured(graph.parent)
            for folder in sorted(path for path in graph.parent.iterdir() if path.is_dir()):
                files = sorted(folder.glob("*/plan.json"))
                yield graph.parent.name, folder.name, ((case, load(file, "plan", Plan)) for file in files)
        return
    for network in asked.networks:
        graph = zoo_graph(network, asked.scale, asked.cache)
        profile = modelled_profile(graph, tables=asked.tables, noise=asked.noise)
        case = Instance(graph, profile, modelled_links())
        for optimizer in asked.optimizers:
            limits = [limit for limit in asked.limits if optimizer != "asynchronous" or limit in BESIDE]
            yield network, optimizer, ((case, _solved(case, optimizer, limit, asked)) for limit in limits)


def _measured(folder: Path) -> Instance:
    from autotm.model.profile import read_profile  # noqa: PLC0415 - brings 30 MB that modelled plans do not need

    links = load(folder.parents[1] / "links.json", "links", Links)
    return Instance(load(folder / "graph.json", "graph", Graph), read_profile(folder / "profile.parquet"), links)


def _solved(case: Instance, optimizer: str, limit: str, asked: argparse.Namespace) -> Plan:
    options = SolveOptions(gap=asked.gap, time_limit_s=asked.time_limit)
    return solve(case.graph, case.profile, case.links, optimizer, Limit.parse(limit), options)


def _verdict(case: Instance, plan: Plan, gap: float) -> Verdict:
    assert plan.certificate is not None
    started = time.perf_counter()
    check_plan(case.graph, case.profile, case.links, plan)
    check_s = time.perf_counter() - started
    claimed = plan.gap > gap and plan.solver_gap is not None and plan.solver_gap <= gap
    return Verdict(
        limit=plan.limit,
        gap=plan.gap,
        proven=plan.gap <= gap,
        claimed=claimed,
        refused=_is_refused(case, plan),
        solve_s=plan.solve_s,
        check_s=check_s,
        size_bytes=len(json.dumps(asdict(plan.certificate), indent=1)),
    )


def _is_refused(case: Instance, plan: Plan) -> bool:
    raised = replace(plan, bound_us=plan.bound_us + _RAISED_BY * plan.objective_us, solver_bound_us=None)
    try:
        check_plan(case.graph, case.profile, case.links, raised)
    except FaultError:
        return True
    return False


def _cells(verdicts: list[Verdict]) -> list[str]:
    return [
        str(len(verdicts)),
        str(sum(one.proven for one in verdicts)),
        str(sum(one.claimed for one in verdicts)),
        str(sum(one.refused for one in verdicts)),
        f"{sum(one.solve_s for one in verdicts):.1f}",
        f"{max(one.solve_s for one in verdicts):.1f}",
        f"{max(one.size_bytes for one in verdicts) / 1e3:.0f}",
        f"{max(one.check_s for one in verdicts):.2f}",
    ]


if __name__ == "__main__":
    main()
