"""Rule figure_fusion: what was found -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages.fusion import fusion_figure_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    optima, searches = ([Path(path) for path in snakemake.input.get(key, [])] for key in ("optima", "searches"))
    fusion_figure_stage(StyleConfig(**snakemake.params.style), optima, searches, Path(snakemake.output.csv))
