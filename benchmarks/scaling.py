"""How solving and packing grow with the kernels of a step: seconds, memory and gaps, as a table and a figure.

    python benchmarks/scaling.py                                         # five networks to 50 000 kernels: minutes
    python benchmarks/scaling.py --kernels 200000 1000000 --networks densenet264 --out scaling.pdf

Each step is that of a network at the paper's batch size repeated to so many kernels (benchmarks/deep_graphs.py), with
modelled and noisy kernel times, `synchronous` 4:1 to 0.1 %, each in a process of its own. `make`: graph and profile,
which the benchmark makes; `whole`: `solve_and_pack`, until offsets keep the limit; `build` and `solve`: of these, for
the integer program; `pack`: the plan's stays packed once more, by itself. Exponents are slopes of the least squares
through the logarithms of a network's kernels and of its seconds (`whole`) or memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from autotm.layout.packing import layout_of
from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve_and_pack
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph

NETWORKS = ("vgg19", "inception_v4", "resnet200", "densenet264", "vgg416")
KERNELS = (5_000, 20_000, 50_000)
OPTIMIZER, LIMIT, GAP, NOISE = "synchronous", Limit(4, 1), 0.001, 0.3


@dataclass(frozen=True)
class Row:
    """What one process measured."""

    network: str
    kernels: int
    stays: int
    make_s: float
    whole_s: float
    build_s: float
    solve_s: float
    pack_s: float
    gap: float
    attempts: int
    is_within_limit: bool
    peak_mb: float


def main() -> None:
    """Measure every network at every length, print rows and exponents, and draw them."""
    asked = _parser().parse_args()
    spawn = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    print("network       kernels   stays  make s  whole s  build s  solve s  pack s     gap  attempts  within  peak MB")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        for network in asked.networks:
            for kernels in sorted(asked.kernels):
                row = processes.submit(measure, network, kernels, asked.scale, asked.cache, asked.time_limit).result()
                rows.append(row)
                print(
                    f"{network:12}{row.kernels:9}{row.stays:8}{row.make_s:8.1f}{row.whole_s:9.2f}{row.build_s:9.2f}"
                    f"{row.solve_s:9.2f}{row.pack_s:8.2f}{row.gap:8.3%}{row.attempts:10}{row.is_within_limit!s:>8}{row.peak_mb:9.0f}",
                    flush=True,
                )
            _print_exponent([row for row in rows if row.network == network])
    if asked.out:
        _draw(rows, asked.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--kernels", nargs="+", type=int, default=KERNELS, help="lengths of a step (%(default)s)")
    parser.add_argument("--scale", default="paper", help="sizes of the networks (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="SECONDS", help="of a solve (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figure, PDF or PNG")
    graphs = Path(tempfile.gettempdir()) / "autotm-graphs"
    parser.add_argument("--cache", type=Path, default=graphs, help="where lowered steps are kept (%(default)s)")
    return parser


def measure(network: str, kernels: int, scale: str, cache: Path, time_limit_s: float) -> Row:
    """Make a step of so many kernels, and solve and pack it, in this process."""
    begun = time.perf_counter()
    graph = deepened(zoo_graph(network, scale, cache), kernels)
    profile = modelled_profile(graph, noise=NOISE)
    made = time.perf_counter()
    options = SolveOptions(gap=GAP, time_limit_s=time_limit_s)
    plan, layout = solve_and_pack(graph, profile, modelled_links(), OPTIMIZER, LIMIT, options)
    solved = time.perf_counter()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    layout_of(graph, replace(plan, offsets=()))
    return Row(
        network=network,
        kernels=len(graph.kernels),
        stays=len(plan.stays),
        make_s=made - begun,
        whole_s=solved - made,
        build_s=plan.build_s,
        solve_s=plan.solve_s,
        pack_s=time.perf_counter() - solved,
        gap=plan.gap,
        attempts=len(plan.attempts_s),
        is_within_limit=fits(plan, layout),
        peak_mb=peak_mb,
    )


def _print_exponent(rows: list[Row]) -> None:
    if len({row.kernels for row in rows}) > 1:
        logs = np.log([[row.kernels, row.whole_s, row.peak_mb] for row in rows]).T
        seconds, memory = (float(np.polyfit(logs[0], values, 1)[0]) for values in logs[1:])
        print(f"{rows[0].network}: seconds grow with the kernels to the power of {seconds:.2f}, memory {memory:.2f}")


def _draw(rows: list[Row], path: Path) -> None:
    # Imported here: the processes that are measured import this file, and these would take some 110 MB of theirs.
    import pandas as pd  # noqa: PLC0415
    import seaborn as sns  # noqa: PLC0415

    names = {
        "whole_s": "solve and pack (s)",
        "peak_mb": "peak memory of the process (MB)",
        "kernels": "kernels of the step",
    }
    long = (
        pd.DataFrame(map(asdict, rows))
        .rename(columns=names)
        .melt(
            ["network", "kernels of the step"],
            ["solve and pack (s)", "peak memory of the process (MB)"],
            "quantity",
        )
    )
    grid = sns.relplot(
        long,
        x="kernels of the step",
        y="value",
        hue="network",
        col="quantity",
        kind="line",
        marker="o",
        facet_kws={"sharey": False},
        height=3,
    )
    grid.set(xscale="log", yscale="log", ylabel="").set_titles("{col_name}")
    grid.figure.suptitle(f"{OPTIMIZER}, {LIMIT}, asked for {GAP:.1%}; modelled kernel times, measured seconds", y=1.03)
    grid.savefig(path)


if __name__ == "__main__":
    main()
