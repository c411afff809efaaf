"""The pipeline's last stages: from what was measured and planned to pictures with their tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.model.config import KernelPlotConfig, PricesConfig, ProfileConfig, StyleConfig
from autotm.model.errors import BadInputError, unknown_name
from autotm.model.files import hash_of, load, load_with_provenance
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import Links
from autotm.model.paths import ConvolutionPaths, Paths
from autotm.model.plan import Plan
from autotm.model.profile import write_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.stages.context import Context, PlacementInputs

if TYPE_CHECKING:
    from autotm.study.placed import Placed


log = logging.getLogger(__name__)


def figure_stage(
    style: StyleConfig,
    files: Mapping[str, Any],
    *,
    csv: Path,
    prices: PricesConfig | None = None,
    devices: Mapping[str, str] | None = None,
) -> None:
    """Make the figure that `csv` names: files -> table -> picture.

    Args:
        style: how it is drawn.
        files: those that the figure needs, paths or lists of paths, by what they are: `records`, `plans`, `graphs`,
            `steps`, `graph`, `profile`, `plan`, `program`, `links`, `device`.
        csv: where its table goes; the pictures go next to it.
        prices: of memory; the defaults without.
        devices: the name of each machine's slow memory, for the figure of devices.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: no such figure, or the records do not make one.
    """
    from autotm.study.figures import gpu, heap, kernel_times, slow_memories
    from autotm.study.figures.figures import FIGURES, draw
    from autotm.study.tables import table_of_plans, table_of_records, with_prices, write_table

    if csv.stem not in FIGURES:
        raise unknown_name("figure", csv.stem, FIGURES)
    match csv.stem:
        case "fig8" | "fig8_talk" if files.get("plans"):
            table = table_of_plans(files["plans"], files["graphs"])
        case "fig8" | "fig8_talk":
            table = table_of_records(files["records"], needs_all_fast=False)
        case "fig12":
            table = gpu.table_of_steps(files["steps"])
        case "fig12_timeline":
            table = gpu.table_of_lanes(files["steps"])
        case "devices":
            table = slow_memories.table_of_devices(files["records"], devices or {})
        case "kernel_plot":
            table = kernel_times.table_of_convolution(files["graph"], files["profile"])
        case "heap":
            table = heap.table_of_heap(files["graph"], files["profile"], files["plan"], files["program"])
        case "links":
            table = slow_memories.table_of_links(files["links"], files.get("device"))
        case _:
            table = with_prices(table_of_records(files["records"]), prices or PricesConfig())
    write_table(table, csv)
    draw(csv, style)


def convolution_profile_stage(
    context: Context, convolution: KernelPlotConfig, batch: int, config: ProfileConfig, paths: ConvolutionPaths
) -> None:
    """Compile one convolution, and time it with every operand in fast and in slow memory."""
    from autotm.kernels.library import KernelLibrary
    from autotm.kernels.target import machine_target
    from autotm.lower.lowering import lower_convolution
    from autotm.profile.kernel_timing import ProfileOptions
    from autotm.profile.profiler import profile_kernels
    from autotm.profile.store import KernelStore

    machine = context.to_measure().machine
    came_from = provenance(machine, context.seed, sizes={"batch": batch, **convolution.model_dump()})
    step = lower_convolution(
        batch,
        convolution.image,
        convolution.channels,
        paths.scale,
        machine_target(machine),
        machine.threads,
        paths.graph,
        paths.library,
        came_from,
        paths.objects,
    )
    options = replace(ProfileOptions(**config.timing, seed=context.seed), configurations="full")
    with KernelStore(paths.store) as opened:
        timed = profile_kernels(
            counting(step, Counts.ALL),
            KernelLibrary.load(paths.library),
            machine,
            load(paths.links, "links", Links),
            opened,
            options,
            context.devices_dir,
        )
    write_profile(paths.profile, timed)


def timing_figure_stage(style: StyleConfig, *, study: Path, recorded: Path | None, csv: Path, summary: Path) -> None:
    """Make a table of measurements, the pictures next to it, and a summary, which is logged too."""
    from autotm.study.figures.kernel_times import make_timing_figure

    table = make_timing_figure(study, recorded, csv, summary, style)
    log.info("%s:\n%s", summary, table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))


def placed_of(paths: Paths, optimizer: str, limit: Limit, *, with_record: bool = False) -> Placed:
    """Return a plan with addresses, and all that it was made from; what its run measured, if asked for and there.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: plan and step do not belong together.
    """
    from autotm.study.placed import Placed

    plan, record = paths.plan(optimizer, limit), paths.record(optimizer, limit)
    placed, source = load_with_provenance(plan, "plan", Plan)
    step, times, copies = PlacementInputs(paths).read(placed.counts)
    if hash_of(step) != placed.graph_hash:
        raise BadInputError(f"{plan}: made for another step than {paths.graph}; solve again")
    laid = load(paths.program(optimizer, limit), "program", Program)
    measured = None
    if with_record and record.exists():
        measured, of_run = load_with_provenance(record, "record", Record)
        if of_run.get("plan_hash") != hash_of(placed):
            log.warning("%s: of another plan than the one shown; left out. Run again to have it there", record)
            measured = None
    return Placed(step, times, copies, placed, laid, source, measured)
