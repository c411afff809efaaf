"""How far above the live peak ways to pack a plan's fast stays end, and how long they take.

    python benchmarks/packing.py                                              # modelled times, minutes
    python benchmarks/packing.py --networks inception_v4 --limits 19:1 --optimizers static
    python benchmarks/packing.py --networks resnet200 --limits 4:1 --scale paper --deepen 50000

One line per plan: its fast stays, what its limit leaves above their live peak, and for each way the excess of its
offsets over the live peak with the seconds that it took. `skyline` is the better of layout/packing.py's two orders,
`greedy` the best of omnimalloc's greedy orders, `supermalloc` its search as it comes, on one thread, with a second of
time; `autotm` what rule ilp_solve does. `-`: not tried, since more than 5000 stays take omnimalloc's own ways minutes,
or all memory. Plans are for modelled kernel times (benchmarks/modelled_profile.py).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from omnimalloc import Allocation
from omnimalloc.allocators.greedy import GreedyByAllAllocator
from omnimalloc.allocators.supermalloc import SupermallocAllocator

from autotm.layout.packing import Blocks, Ints, pack_blocks, skyline
from autotm.model.graph import ALIGNMENT_BYTES, Tier
from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve
from deep_graphs import deepened
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph

NETWORKS = ("vgg19", "inception_v4", "resnet200", "densenet264", "vgg416")
LIMITS = ("99:1", "39:1", "19:1", "8:1", "4:1", "1:1")
_MOST_STAYS = 5000


def main() -> None:
    """Solve each network, pack its plan by each packer, and print heights and seconds."""
    asked = _parser().parse_args()
    print("network        optimizer   limit   stays  limit leaves" + "".join(f"{name:>21}" for name in PACKERS))
    for network in asked.networks:
        graph = zoo_graph(network, asked.scale, asked.cache)
        graph = deepened(graph, asked.deepen) if asked.deepen else graph
        profile = modelled_profile(graph, noise=0.3 if asked.deepen else 0.0)
        for optimizer, limit in product(asked.optimizers, asked.limits):
            plan = solve(graph, profile, modelled_links(), optimizer, Limit.parse(limit), SolveOptions(gap=0.01))
            chosen = plan.step_of(graph)
            blocks = Blocks.of(chosen, [stay for stay in plan.stays if stay.tier is Tier.FAST])
            left = plan.dram_limit_bytes / blocks.peak_bytes - 1
            line = f"{network:14} {optimizer:12}{limit:>5} {len(blocks):7} {left:13.3%}"
            print(line + "".join(_cell(pack, blocks, plan.dram_limit_bytes) for pack in PACKERS.values()), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--optimizers", nargs="+", default=("static", "synchronous"))
    parser.add_argument("--limits", nargs="+", default=LIMITS)
    parser.add_argument("--scale", default="laptop", help="sizes of the networks (%(default)s)")
    parser.add_argument("--deepen", type=int, default=0, metavar="KERNELS", help="repeat each step to so many kernels")
    graphs = Path(tempfile.gettempdir()) / "autotm-graphs"
    parser.add_argument("--cache", type=Path, default=graphs, help="where lowered steps are kept (%(default)s)")
    return parser


def _cell(pack: Callable[[Blocks, int], Ints | None], blocks: Blocks, limit_bytes: int) -> str:
    started = time.perf_counter()
    offsets = pack(blocks, limit_bytes)
    seconds = time.perf_counter() - started
    return (
        f"{'-':>21}" if offsets is None else f"{blocks.height(offsets) / blocks.peak_bytes - 1:10.3%} {seconds:8.2f} s"
    )


def _skyline(blocks: Blocks, _: int) -> Ints:
    lives = (blocks.ends - blocks.starts).astype(float)
    return min((skyline(blocks, priority) for priority in (lives, lives * blocks.sizes)), key=blocks.height)


def _library(make: Callable[[], GreedyByAllAllocator | SupermallocAllocator]) -> Callable[[Blocks, int], Ints | None]:
    def pack(blocks: Blocks, _: int) -> Ints | None:
        if len(blocks) > _MOST_STAYS:
            return None
        columns = ((blocks.sizes // ALIGNMENT_BYTES).tolist(), blocks.starts.tolist(), blocks.ends.tolist())
        stays = [Allocation(number, *column) for number, column in enumerate(zip(*columns, strict=True))]
        placed = {each.id: each.offset or 0 for each in make().allocate(tuple(stays))}
        return np.array([placed[number] * ALIGNMENT_BYTES for number in range(len(blocks))], np.int64)

    return pack


PACKERS: dict[str, Callable[[Blocks, int], Ints | None]] = {
    "skyline": _skyline,
    "greedy": _library(GreedyByAllAllocator),
    "supermalloc": _library(lambda: SupermallocAllocator(timeout=1.0, num_threads=1)),
    "autotm": pack_blocks,
}


if __name__ == "__main__":
    main()
