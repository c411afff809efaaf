"""What autotm makes of networks whose kernel times are given, as digests: for a change that should change nothing.

    python benchmarks/same_bytes.py > before.txt       # then make the change
    python benchmarks/same_bytes.py | diff before.txt -

One line each: the step's graph, with the identities of its kernels, which change with their code; and by optimizer and
limit the plan (without the times that its search took) and the program. Kernel times are modelled
(benchmarks/modelled_profile.py). Where stays are placed anew (`solve/search.py`), the clock says how many orders
are tried: a line that differs is repeated, on both commits, with the machine quiet and busy, before it is believed.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path

from autotm.layout.compile import compile_program
from autotm.model.files import hash_of
from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph

NETWORKS = ("vgg19", "inception_v4", "resnet200", "densenet264")
OPTIMIZERS = ("static", "synchronous", "numa", "memory-mode")
LIMITS = ("8:1", "4:1", "1:1")


def main() -> None:
    """Print the digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--scale", default="tiny", help="sizes of the networks (%(default)s)")
    asked = parser.parse_args()
    for network in asked.networks:
        with tempfile.TemporaryDirectory() as folder:
            _print_digests(network, asked.scale, Path(folder))


def _print_digests(network: str, scale: str, folder: Path) -> None:
    graph = zoo_graph(network, scale, folder)
    print(f"{network} graph {hash_of(graph)}", flush=True)
    profile, links = modelled_profile(graph), modelled_links()
    for optimizer, limit in product(OPTIMIZERS, LIMITS):
        plan, layout = solve_and_pack(graph, profile, links, optimizer, Limit.parse(limit), SolveOptions(gap=0.05))
        timeless = replace(plan, build_s=0.0, solve_s=0.0, attempts_s=())
        program = compile_program(graph, timeless, layout)
        print(f"{network} {optimizer} {limit} plan {hash_of(timeless)} program {hash_of(program)}", flush=True)


if __name__ == "__main__":
    main()
