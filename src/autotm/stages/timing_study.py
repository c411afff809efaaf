"""The stages of the timing study: files in, measurements or a figure out."""

from __future__ import annotations

import logging
from pathlib import Path

from autotm.model.files import load, save
from autotm.model.machine import provenance
from autotm.model.measurement import Links
from autotm.model.step import Graph
from autotm.model.study import ProfileConfig, StyleConfig
from autotm.stages.context import Context

log = logging.getLogger(__name__)


def timing_study_stage(
    context: Context, repeats: int, config: ProfileConfig, *, graph: Path, library: Path, links: Path, study: Path
) -> None:
    """Time the kernels of a step one configuration at a time, many together, and alone."""
    from autotm.kernels.library import KernelLibrary
    from autotm.profile.step import measure
    from autotm.profile.timing import ProfileOptions

    came_from = provenance(context.machine, context.seed, repeats=repeats, options=config.timing)
    found = measure(
        load(graph, "graph", Graph),
        KernelLibrary.load(library),
        context.machine,
        load(links, "links", Links),
        ProfileOptions(**config.timing, seed=context.seed),
        repeats,
        context.devices_dir,
    )
    save(study, "timing_study", found, came_from)


def timing_figure_stage(
    style: StyleConfig, *, study: Path, recorded: Path | None, csv: Path, summary: Path, pdf: Path, png: Path
) -> None:
    """Measurements -> table -> picture, and a summary, which is told too."""
    from autotm.study.figures import make_timing_figure

    found = make_timing_figure(study, recorded, csv, summary, pdf, png, style)
    log.info("%s:\n%s", summary, found.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
