"""Rule figure_fusion: what was found -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages.fusion import fusion_figure_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    # Where there is one file of a kind, Snakemake gives it as text.
    files = {
        key: [Path(path) for path in ([value] if isinstance(value, str) else value)]
        for key, value in snakemake.input.items()
    }
    fusion_figure_stage(StyleConfig(**snakemake.params.style), files, Path(snakemake.output.csv))
