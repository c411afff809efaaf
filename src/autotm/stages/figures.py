"""The pipeline's last stages: from what was measured and planned to pictures with their tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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


def figure_of_records_stage(style: StyleConfig, prices: PricesConfig, records: Sequence[Path], *, csv: Path) -> None:
    """Records -> the figure that `csv` names."""
    from autotm.study.figures.figures import FigureFiles, make_figure_of_records

    make_figure_of_records(records, FigureFiles.of(csv), style, prices)


def figure_of_devices_stage(
    style: StyleConfig, devices: Mapping[str, str], *, records: Sequence[Path], csv: Path
) -> None:
    """Records of several machines, whose slow memory `devices` names -> figure devices as `csv` names it."""
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.figures.slow_memories import table_of_devices

    make_figure(table_of_devices(records, devices), FigureFiles.of(csv), style)


def figure_8_stage(
    style: StyleConfig, *, records: Sequence[Path], plans: Sequence[Path], graphs: Sequence[Path], csv: Path
) -> None:
    """Records of large networks, or plans of their modelled steps -> figure 8 as `csv` names it."""
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.tables import table_of_plans, table_of_records

    table = table_of_plans(plans, graphs) if plans else table_of_records(records, needs_all_fast=False)
    make_figure(table, FigureFiles.of(csv), style)


def figure_12_stage(style: StyleConfig, *, steps: Sequence[Path], csv: Path) -> None:
    """Modelled steps, or records of a GPU -> figure 12 or its timeline, as `csv` names it."""
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.figures.gpu import table_of_lanes, table_of_steps

    files = FigureFiles.of(csv)
    table = table_of_lanes(steps) if files.name == "fig12_timeline" else table_of_steps(steps)
    make_figure(table, files, style)


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


def kernel_plot_stage(style: StyleConfig, *, graph: Path, profile: Path, csv: Path) -> None:
    """Times of one convolution -> the kernel plot."""
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.figures.kernel_times import table_of_convolution

    make_figure(table_of_convolution(graph, profile), FigureFiles.of(csv), style)


def heap_stage(style: StyleConfig, *, graph: Path, profile: Path, plan: Path, program: Path, csv: Path) -> None:
    """A program and its plan -> the heap plot."""
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.figures.heap import table_of_heap

    make_figure(table_of_heap(graph, profile, plan, program), FigureFiles.of(csv), style)


def links_stage(style: StyleConfig, *, links: Path, device: Path | None, csv: Path) -> None:
    """What calibration measured -> the figure of the links."""
    from autotm.study.figures.figures import FigureFiles, make_figure
    from autotm.study.figures.slow_memories import table_of_links

    make_figure(table_of_links(links, device), FigureFiles.of(csv), style)


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
