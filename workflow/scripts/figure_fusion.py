"""Rule figure_fusion: what was found -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages.fusion import fusion_figure_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    optima = [Path(path) for path in snakemake.input.optima]
    fusion_figure_stage(StyleConfig(**snakemake.params.style), optima, Path(snakemake.output.csv))
