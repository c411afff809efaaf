"""Rule kernel_plot: draw the times of one convolution."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages import kernel_plot_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    kernel_plot_stage(
        StyleConfig(**snakemake.params.style),
        graph=Path(snakemake.input.graph),
        profile=Path(snakemake.input.profile),
        csv=Path(snakemake.output.csv),
    )
