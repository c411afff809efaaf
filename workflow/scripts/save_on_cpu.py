"""Rule save_on_cpu: time PyTorch's own step, and record it."""

from autotm.model.config import RunConfig
from autotm.model.limit import Limit
from autotm.model.network_source import NetworkSource
from autotm.stages.gpu import save_on_cpu_stage
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    source, config = NetworkSource(**snakemake.params.network), RunConfig(**snakemake.params.options)
    save_on_cpu_stage(job.context, source, Limit.parse(snakemake.wildcards.limit), config, job.paths)
