"""Rules figure_8 and figure_8_talk: records, or plans of modelled steps -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages import figure_8_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    figure_8_stage(
        StyleConfig(**snakemake.params.style),
        records=[Path(path) for path in snakemake.input.records],
        plans=[Path(path) for path in snakemake.input.plans],
        graphs=[Path(path) for path in snakemake.input.graphs],
        csv=Path(snakemake.output.csv),
    )
