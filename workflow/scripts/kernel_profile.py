"""Rule kernel_profile: compile a training step, and time its kernels."""

from pathlib import Path

from autotm.model.config import ProfileConfig
from autotm.model.network_source import NetworkSource
from autotm.stages import kernel_profile_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    kernel_profile_stage(
        context,
        NetworkSource(**snakemake.params.network),
        snakemake.wildcards.scale,
        ProfileConfig(**snakemake.params.options),
        links=Path(snakemake.input.links),
        store=Path(snakemake.params.store),
        objects=Path(snakemake.params.objects),
        values=Path(snakemake.params.values),
        graph=Path(snakemake.output.graph),
        library=Path(snakemake.output.library),
        profile=Path(snakemake.output.profile),
    )
