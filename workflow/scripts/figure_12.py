"""Rules figure_12 and figure_12_timeline: modelled steps, or records of a GPU -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages import figure_12_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    figure_12_stage(
        StyleConfig(**snakemake.params.style),
        steps=[Path(step) for step in snakemake.input.steps],
        csv=Path(snakemake.output.csv),
    )
