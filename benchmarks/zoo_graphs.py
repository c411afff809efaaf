"""Training steps of the zoo at any scale, without allocating or compiling anything; each is lowered once and kept."""

from __future__ import annotations

from pathlib import Path

from autotm.model.files import load, save
from autotm.model.graph import Graph
from autotm.model.scale import load_scale

SCALES = Path(__file__).parents[1] / "config" / "scales"
_THREADS = 24
"""Of one socket of the paper's server: schedules, and with them workspaces, depend on it."""


def zoo_graph(network: str, scale: str, cache: Path) -> Graph:
    """The step of `network`, from `cache` where it has been lowered before (lowering takes up to minutes)."""
    kept = cache / scale / f"{network}.json"
    if kept.exists():
        return load(kept, "graph", Graph)
    graph = _lowered(network, scale)
    save(kept, "graph", graph, {"made_by": "benchmarks/zoo_graphs.py"})
    return graph


def _lowered(network: str, scale: str) -> Graph:
    from autotm import zoo  # noqa: PLC0415 - TVM takes seconds, and most rows find their graph in the cache
    from autotm.kernels.target import host_target  # noqa: PLC0415
    from autotm.lower.lower import scheduled_step  # noqa: PLC0415

    built = zoo.build(network, load_scale(SCALES / f"{scale}.yaml").networks[network])
    return scheduled_step(built, scale, host_target(_THREADS), _THREADS).graph
