"""Rule figure: files -> table -> picture; the files' name says which figure."""

from pathlib import Path

from autotm.model.config import PricesConfig, StyleConfig
from autotm.stages.figures import figure_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    inputs, prices = snakemake.input.items(), snakemake.params.settings.get("prices")
    figure_stage(
        StyleConfig(**snakemake.params.style),
        {name: Path(path) if isinstance(path, str) else [Path(one) for one in path] for name, path in inputs},
        csv=Path(snakemake.output.csv),
        prices=PricesConfig(**prices) if prices else None,
        devices=snakemake.params.settings.get("devices"),
    )
