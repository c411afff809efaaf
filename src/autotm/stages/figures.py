"""The pipeline's last stages: from what was measured and planned to pictures with their tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotm.model.config import KernelPlotConfig, PricesConfig, ProfileConfig, StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of, load, load_with_provenance
from autotm.model.graph import Graph, Tier
from autotm.model.limit import Counts, counting
from autotm.model.links import Links
from autotm.model.plan import Plan
from autotm.model.profile import read_profile, write_profile
from autotm.model.program import Program
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.stages.context import Context

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
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.tables import table_of_plans, table_of_records, with_prices

    figure = FigureFiles.of(csv)
    match figure.name:
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
    make_figure(table, figure, style)


def convolution_profile_stage(
    context: Context,
    convolution: KernelPlotConfig,
    batch: int,
    scale: str,
    config: ProfileConfig,
    *,
    links: Path,
    store: Path,
    objects: Path,
    graph: Path,
    library: Path,
    profile: Path,
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
        scale,
        machine_target(machine),
        machine.threads,
        graph,
        library,
        came_from,
        objects,
    )
    options = replace(ProfileOptions(**config.timing, seed=context.seed), configurations="full")
    with KernelStore(store) as opened:
        timed = profile_kernels(
            counting(step, Counts.ALL),
            KernelLibrary.load(library),
            machine,
            load(links, "links", Links),
            opened,
            options,
            context.devices_dir,
        )
    write_profile(profile, timed)


def timing_figure_stage(
    style: StyleConfig, *, study: Path, recorded: Path | None, csv: Path, summary: Path, pdf: Path, png: Path
) -> None:
    """Measurements -> table -> picture, and a summary, which is told too."""
    from autotm.study.figures.kernel_times import make_timing_figure

    found = make_timing_figure(study, recorded, csv, summary, pdf, png, style)
    log.info("%s:\n%s", summary, found.to_string(index=False, float_format=lambda value: f"{value:.3g}"))


def view_stage(
    *, graph: Path, profile: Path, links: Path, plan: Path, program: Path, record: Path | None, page: Path
) -> None:
    """A plan with addresses, and the record of its run if there is one -> a page to look into.

    Raises:
        DamagedFileError: a file cannot be read.
        BadInputError: they do not belong together.
    """
    from autotm.study.view.page import write_page

    write_page(placed_of(graph, profile, links, plan, program, record), page)


def stays_stage(*, graph: Path, profile: Path, links: Path, plan: Path, program: Path, files: dict[Tier, Path]) -> None:
    """A plan with addresses -> the buffers of each pool, as packers read them.

    Raises:
        as `view_stage`.
    """
    from autotm.study.placed import write_stays

    write_stays(placed_of(graph, profile, links, plan, program, None), files)


def placed_of(graph: Path, profile: Path, links: Path, plan: Path, program: Path, record: Path | None) -> Placed:
    """A plan with addresses, and all that it was made from.

    Raises:
        as `view_stage`.
    """
    from autotm.study.placed import Placed

    placed, source = load_with_provenance(plan, "plan", Plan)
    step = counting(load(graph, "graph", Graph), placed.counts)
    if hash_of(step) != placed.graph_hash:
        raise BadInputError(f"{plan}: made for another step than {graph}; solve again")
    copies, laid = load(links, "links", Links), load(program, "program", Program)
    return Placed(step, read_profile(profile), copies, placed, laid, source, _record_of(placed, record))


def _record_of(plan: Plan, record: Path | None) -> Record | None:
    """What the plan's run measured; a record of another plan is left out."""
    if record is None or not record.exists():
        return None
    measured, source = load_with_provenance(record, "record", Record)
    if source.get("plan_hash") != hash_of(plan):
        log.warning("%s: of another plan than the one shown; left out. Run again to have it there", record)
        return None
    return measured
