"""Rule calibrate: how fast the machine copies between its memories."""

from pathlib import Path

from autotm.rule_script import rule
from autotm.stages import calibrate_stage

with rule(snakemake) as context:
    calibrate_stage(context, snakemake.params.patience_s, links=Path(snakemake.output.links))
