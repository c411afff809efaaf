"""Rules of figures that show runs: records -> table -> picture; the files' name says which figure."""

from pathlib import Path

from autotm.model.config import PricesConfig, StyleConfig
from autotm.stages import figure_of_records_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    figure_of_records_stage(
        StyleConfig(**snakemake.params.style),
        PricesConfig(**snakemake.params.get("prices", {})),
        [Path(record) for record in snakemake.input.records],
        csv=Path(snakemake.output.csv),
    )
