"""Rule model_kernels: lower a training step, and model the times of its kernels on a GPU."""

from pathlib import Path

from autotm.model.network_source import NetworkSource
from autotm.stages import model_kernels_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    model_kernels_stage(
        context,
        NetworkSource(**snakemake.params.network),
        snakemake.wildcards.scale,
        graph=Path(snakemake.output.graph),
        profile=Path(snakemake.output.profile),
    )
