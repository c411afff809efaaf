"""Rule convolution_profile: time one convolution with its operands in every memory."""

from pathlib import Path

from autotm.model.config import KernelPlotConfig, ProfileConfig
from autotm.stages import convolution_profile_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    convolution_profile_stage(
        context,
        KernelPlotConfig(**snakemake.params.convolution),
        snakemake.params.batch,
        snakemake.wildcards.scale,
        ProfileConfig(**snakemake.params.options),
        links=Path(snakemake.input.links),
        store=Path(snakemake.params.store),
        objects=Path(snakemake.params.objects),
        graph=Path(snakemake.output.graph),
        library=Path(snakemake.output.library),
        profile=Path(snakemake.output.profile),
    )
