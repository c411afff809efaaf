"""Rule model_kernels: lower a training step, and model the times of its kernels on a GPU."""

from autotm.model.network_source import NetworkSource
from autotm.stages.jobs import rule
from autotm.stages.modelled import model_kernels_stage

with rule(snakemake) as job:
    model_kernels_stage(job.context, NetworkSource(**snakemake.params.network), job.paths)
