"""Rule figure_10: draw AutoTM's case study."""

from pathlib import Path

from autotm.model.study_config import StyleConfig
from autotm.rule_script import rule
from autotm.stages import figure_10_stage

with rule(snakemake):
    figure_10_stage(
        StyleConfig(**snakemake.params.style),
        [Path(record) for record in snakemake.input.records],
        csv=Path(snakemake.output.csv),
        pdf=Path(snakemake.output.pdf),
        png=Path(snakemake.output.png),
    )
