"""Rule compile: give every tensor of a plan its address."""

from pathlib import Path

from autotm.stages import compile_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    compile_stage(
        context,
        graph=Path(snakemake.input.graph),
        profile=Path(snakemake.input.profile),
        links=Path(snakemake.input.links),
        plan=Path(snakemake.input.plan),
        program=Path(snakemake.output.program),
    )
