"""Modelled steps of figure 12 that no simulation made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotm.model.files import save
from autotm.model.limit import Limit
from autotm.model.timeline import Engine, EngineEvent, ModelledStep

SPEEDUPS = {
    "managed-memory": 1.0,
    "lru-paging": 1.2,
    "swap-all": 0.0,
    "recompute": 1.4,
    "save-on-cpu": 1.1,
    "synchronous": 1.5,
    "asynchronous": 1.9,
}
"""Over managed memory, by what places the tensors; 0 for a step that does not fit."""
BATCHES = {"inception_v4": (64, 128, 256), "resnet200": (32, 64), "vgg19": (64,)}
_BASE_US = 2e6


def write_modelled(folder: Path, source: dict[str, Any], batches: dict[str, Sequence[int]]) -> list[Path]:
    """A file for each network, batch and optimizer."""
    paths = []
    for network, several in batches.items():
        for batch in several:
            for optimizer, speedup in SPEEDUPS.items():
                path = folder / network / str(batch) / optimizer / "modelled.json"
                path.parent.mkdir(parents=True)
                save(path, "modelled_step", _step(network, batch, optimizer, speedup), source)
                paths.append(path)
    return paths


def _step(network: str, batch: int, optimizer: str, speedup: float) -> ModelledStep:
    step_us = _BASE_US * batch / 64 / (speedup or 1.1)
    is_plan = optimizer in {"synchronous", "asynchronous"}
    events = tuple(
        EngineEvent(engine, f"{engine}{number}", number * step_us / 10, (number + 0.5 + lead) * step_us / 10)
        for number in range(10)
        for engine, lead in zip(Engine, (0.4, 0.1, 0.2), strict=True)
    )
    return ModelledStep(
        network=network,
        scale="paper-gpu-1",
        batch=batch,
        machine="modelled-rtx-2080-ti-1t",
        gpu="RTX 2080 Ti",
        tier_reality="modelled",
        optimizer=optimizer,
        limit=Limit.parse("10000MB-io"),
        counts="intermediates",
        dram_limit_bytes=10_000_000_000,
        io_size=300_000_000,
        peak_live_bytes=14_000_000_000,
        fits=bool(speedup),
        most_bytes=9_900_000_000,
        step_us=step_us,
        kernels_us=0.7 * step_us,
        repeated_us=0.2 * step_us if optimizer == "recompute" else 0.0,
        oracle_us=_BASE_US * batch / 64 / 2.1,
        in_bytes=3_000_000_000,
        out_bytes=3_000_000_000,
        predicted_us=step_us if is_plan else None,
        bound_us=0.99 * step_us if is_plan else None,
        gap=0.01 if is_plan else None,
        solver_status="optimal" if is_plan else "",
        implementations={"winograd": 3},
        remark="",
        events=events,
    )
