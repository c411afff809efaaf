"""Rules figure_7, figure_9 and figure_11: draw several networks over a few limits."""

from pathlib import Path

from autotm.model.study_config import StyleConfig
from autotm.rule_script import rule
from autotm.stages import comparison_figure_stage

with rule(snakemake):
    comparison_figure_stage(
        snakemake.params.name,
        StyleConfig(**snakemake.params.style),
        [Path(record) for record in snakemake.input.records],
        csv=Path(snakemake.output.csv),
        pdf=Path(snakemake.output.pdf),
        png=Path(snakemake.output.png),
    )
