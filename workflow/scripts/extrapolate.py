"""Rule extrapolate: model a step too large to run, from its profiles at small batches."""

from pathlib import Path

from autotm.stages.jobs import rule
from autotm.stages.modelled import extrapolate_stage

with rule(snakemake) as job:
    graphs, profiles = ([Path(path) for path in paths] for paths in (snakemake.input.graphs, snakemake.input.profiles))
    extrapolate_stage(job.context, snakemake.params.network["sizes"], graphs, profiles, job.paths)
