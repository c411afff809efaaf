"""Rule links: draw what copies between the two memories reach."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages import links_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    links_stage(
        StyleConfig(**snakemake.params.style),
        links=Path(snakemake.input.links),
        device=Path(snakemake.input.device) if snakemake.input.get("device") else None,
        csv=Path(snakemake.output.csv),
    )
