"""Rule calibrate: how fast the machine copies between its memories."""

from pathlib import Path

from autotm.stages.jobs import rule
from autotm.stages.profile import calibrate_stage

with rule(snakemake) as job:
    calibrate_stage(job.context, snakemake.params.patience_s, links=Path(snakemake.output.links))
