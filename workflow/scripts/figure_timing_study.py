"""Rule figure_timing_study: draw the timing study."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages.figures import timing_figure_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    recorded = snakemake.input.get("recorded")
    timing_figure_stage(
        StyleConfig(**snakemake.params.style),
        study=Path(snakemake.input.study),
        recorded=Path(recorded) if recorded else None,
        csv=Path(snakemake.output.csv),
        summary=Path(snakemake.output.summary),
    )
