"""Rule figure_control_flow: studies -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages.control_flow import control_figure_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    studies = [Path(path) for path in snakemake.input.studies]
    control_figure_stage(StyleConfig(**snakemake.params.style), studies, Path(snakemake.output.csv))
