"""Rule devices: records of several machines -> table -> picture."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages import figure_of_devices_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    figure_of_devices_stage(
        StyleConfig(**snakemake.params.style),
        snakemake.params.devices,
        records=[Path(record) for record in snakemake.input.records],
        csv=Path(snakemake.output.csv),
    )
