"""Rule timing_study: time the kernels of a step in several ways."""

from autotm.model.config import ProfileConfig
from autotm.stages.jobs import rule
from autotm.stages.profile import timing_study_stage

with rule(snakemake) as job:
    config = ProfileConfig(**snakemake.params.options)
    timing_study_stage(job.context, snakemake.params.repeats, config, job.paths)
