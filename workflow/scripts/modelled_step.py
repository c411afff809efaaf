"""Rule modelled_step: simulate a step on a modelled GPU."""

from autotm.model.config import SolveConfig
from autotm.model.limit import Limit
from autotm.stages.jobs import rule
from autotm.stages.modelled import modelled_step_stage

with rule(snakemake) as job:
    optimizer, limit = snakemake.wildcards.optimizer, Limit.parse(snakemake.wildcards.limit)
    modelled_step_stage(job.context, optimizer, limit, SolveConfig(**snakemake.params.options), job.paths)
