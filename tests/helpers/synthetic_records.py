"""Records and modelled steps of a study that was never run, with numbers that a test can recompute."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotm.model.cache import PageCounts
from autotm.model.files import save
from autotm.model.limit import Limit
from autotm.model.record import Record
from autotm.model.timeline import Engine, EngineEvent, ModelledStep

LIMITS = ("1:0", "99:1", "19:1", "9:1", "4:1", "2:1", "1:1", "1:3", "0:1")
PEAK_BYTES = 1_500_000_000
IO_BYTES = 400_000_000
LINUX = ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing")
UNSEARCHED = ("numa", "memory-mode", *LINUX)
PROVENANCE = {
    "autotm_commit": "0123456789ab",
    "versions": {"autotm": "0.1.0", "apache-tvm": "0.27.0.post1", "highspy": "1.15.1", "python": "3.11.7"},
    "cpu_model": "Imaginary CPU @ 1 GHz",
}


def record(
    optimizer: str,
    limit: str,
    *,
    network: str = "inception_v4",
    scale: str = "laptop",
    step_s: float = 1.0,
    side_by_side: bool = True,
    steeper: float = 1.0,
    machine: str = "laptop-2t",
) -> Record:
    """A run that is `step_s` when all fast and slower by what is slow, `steeper` times as much as usual."""
    limit_bytes = Limit.parse(limit).fast_bytes(PEAK_BYTES)
    slow = 1 - limit_bytes / PEAK_BYTES
    times = {"numa": 4.2, "static": 3.5, "memory-mode": 6.0}.get(optimizer, 3.8 if optimizer in LINUX else 1.4)
    median = step_s * (1 + steeper * times * slow**2)
    moved = round(2e9 * slow * (1 - slow) * 4) if optimizer == "synchronous" else 0
    return Record(
        network=network, scale=scale, batch=8, machine=machine, threads=2, tier_reality="emulated",
        optimizer=optimizer, limit=Limit.parse(limit), counts="intermediates",
        dram_limit_bytes=limit_bytes, ratio_achieved=None, io_size=IO_BYTES,
        default_alloc_size=PEAK_BYTES, dram_alloc_size=limit_bytes, pmem_alloc_size=PEAK_BYTES - limit_bytes,
        predicted_runtime_s=median * 1.04, bound_s=median, gap=0.0096,
        solver_status="not_optimized" if optimizer in UNSEARCHED else "within_gap",
        creation_times=(0.3 * step_s,), optimization_times=(0.7 + slow,), actual_runtime_s=median * 0.98,
        actual_runtime_median_s=median, samples_s=(median * 0.98, median, median * 1.05),
        all_fast_samples_s=(0.97 * step_s, step_s, 1.2 * step_s) if side_by_side else (), disturbed_steps=0,
        disturbed_steps_count=False,
        num_kernels=600,
        num_input_tensors=1300, num_output_tensors=700, num_dram_input_tensors=900, num_dram_output_tensors=400,
        bytes_input_tensors=9_000_000_000, bytes_output_tensors=4_000_000_000,
        bytes_dram_input_tensors=round(9e9 * (1 - slow * 0.9)), bytes_dram_output_tensors=round(4e9 * (1 - slow)),
        num_move_nodes=10, num_dram_move_nodes=5, num_pmem_move_nodes=5, num_async_move_nodes=0,
        bytes_moved=2 * moved, bytes_moved_dram=moved, bytes_moved_pmem=moved // 2, bytes_async_moved=0,
        all_fast_predicted_s=1.04 * step_s,
        move_time_us=1e5, kernel_times_us={}, oracle_time_us=2e5, implementations={"default": 590, "lean": 10},
        verified_steps=2, seed=20,
        pages=PageCounts("simulated", 4096, limit_bytes, 10**9, 10**9, 0, 0, 1, True) if optimizer in LINUX else None,
    )  # fmt: skip


def _written(folder: Path, run: Record) -> Path:
    path = folder / run.optimizer / run.limit.slug / "record.json"
    save(path, "record", run, PROVENANCE)
    return path


def write_study(folder: Path, limits: tuple[str, ...] = LIMITS, *, side_by_side: bool = True) -> list[Path]:
    """Record files of static and synchronous over `limits`, in the order a config lists them."""
    points = itertools.product(("static", "synchronous"), limits)
    return [_written(folder, record(*point, side_by_side=side_by_side)) for point in points]


def write_devices(folder: Path, devices: tuple[str, ...]) -> list[Path]:
    """Record files of numa, synchronous and all slow on a machine for each device, half as slow as the one before."""
    return [
        _written(folder / device, record(*point, steeper=0.5**place, machine=device))
        for place, device in enumerate(devices)
        for point in (("numa", "4:1"), ("synchronous", "4:1"), ("synchronous", "1:0"))
    ]


def write_workload(
    folder: Path,
    networks: tuple[str, ...],
    limits: tuple[str, ...],
    optimizers: tuple[str, ...] = ("numa", "static", "synchronous"),
    *,
    side_by_side: bool = True,
    steeper: float = 0.0,
) -> list[Path]:
    """Record files of several optimizers on several networks; each suffers `steeper` more than the one before."""
    paths = []
    for place, network in enumerate(networks):
        look = {"network": network, "step_s": place + 1.0, "side_by_side": side_by_side, "steeper": 1 + steeper * place}
        points = itertools.product(optimizers, limits)
        paths += [_written(folder / network, record(*point, **look)) for point in points]
    return paths


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
    """A file for each network, batch and optimizer: modelled steps of figure 12 that no simulation made."""
    paths = []
    steps = [(network, batch) for network, several in batches.items() for batch in several]
    for (network, batch), (optimizer, speedup) in itertools.product(steps, SPEEDUPS.items()):
        paths.append(folder / network / str(batch) / optimizer / "modelled.json")
        save(paths[-1], "modelled_step", _step(network, batch, optimizer, speedup), source)
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
