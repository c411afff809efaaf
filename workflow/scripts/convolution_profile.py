"""Rule convolution_profile: time one convolution with its operands in every memory."""

from autotm.model.config import KernelPlotConfig, ProfileConfig
from autotm.model.paths import ConvolutionPaths
from autotm.stages.figures import convolution_profile_stage
from autotm.stages.jobs import RESULTS, rule

with rule(snakemake) as job:
    convolution_profile_stage(
        job.context,
        KernelPlotConfig(**snakemake.params.convolution),
        snakemake.params.batch,
        ProfileConfig(**snakemake.params.options),
        ConvolutionPaths(RESULTS, job.context.machine, snakemake.wildcards.scale),
    )
