"""Rule calibrate: how fast the machine copies between its memories."""

from pathlib import Path

from autotm.stages import calibrate_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    calibrate_stage(context, snakemake.params.patience_s, links=Path(snakemake.output.links))
