"""Rule extrapolate: model a step too large to run, from its profiles at small batches."""

from pathlib import Path

from autotm.stages import extrapolate_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    extrapolate_stage(
        context,
        snakemake.wildcards.scale,
        snakemake.params.network["sizes"],
        graphs=[Path(path) for path in snakemake.input.graphs],
        profiles=[Path(path) for path in snakemake.input.profiles],
        graph=Path(snakemake.output.graph),
        profile=Path(snakemake.output.profile),
    )
