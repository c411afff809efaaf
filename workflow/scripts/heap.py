"""Rule heap: draw the addresses of a plan's tensors over time."""

from pathlib import Path

from autotm.model.config import StyleConfig
from autotm.stages import heap_stage
from autotm.stages.jobs import rule

with rule(snakemake):
    heap_stage(
        StyleConfig(**snakemake.params.style),
        graph=Path(snakemake.input.graph),
        profile=Path(snakemake.input.profile),
        plan=Path(snakemake.input.plan),
        program=Path(snakemake.input.program),
        csv=Path(snakemake.output.csv),
    )
