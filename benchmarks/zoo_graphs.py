"""Training steps of the zoo at any scale, without allocating or compiling anything; each is lowered once and kept."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from autotm.model.config import load_scale
from autotm.model.files import load, save
from autotm.model.graph import Graph

SCALES = Path(__file__).parents[1] / "config" / "scales"
_THREADS = 24
"""Cores of one socket of the paper's server: schedules, and with them workspaces, depend on their number."""


def zoo_graph(network: str, scale: str, cache: Path) -> Graph:
    """Return the step of `network`, from `cache` where it has been lowered before (lowering takes up to minutes)."""
    kept = cache / scale / f"{network}.json"
    if kept.exists():
        return load(kept, "graph", Graph)
    # In another process, so that this one's peak of memory knows nothing of TVM.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(_keep, network, scale, kept).result()
    return load(kept, "graph", Graph)


def _keep(network: str, scale: str, path: Path) -> None:
    from autotm import zoo  # noqa: PLC0415 - TVM takes seconds, and most rows find their graph in the cache
    from autotm.kernels.target import host_target  # noqa: PLC0415
    from autotm.lower.lowering import scheduled_step  # noqa: PLC0415

    built = zoo.build(network, load_scale(SCALES / f"{scale}.yaml").networks[network])
    graph = scheduled_step(built, scale, host_target(_THREADS), _THREADS)
    save(path, "graph", graph, {"made_by": "benchmarks/zoo_graphs.py"})
