"""Rule kernel_profile: compile a training step, and time its kernels."""

from autotm.model.config import ProfileConfig
from autotm.model.network_source import NetworkSource
from autotm.stages.jobs import rule
from autotm.stages.profile import kernel_profile_stage

with rule(snakemake) as job:
    source, config = NetworkSource(**snakemake.params.network), ProfileConfig(**snakemake.params.options)
    kernel_profile_stage(job.context, source, config, job.paths)
