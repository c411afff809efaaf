"""Rule compile: give every tensor of a plan its address."""

from pathlib import Path

from autotm.rule_script import rule
from autotm.stages import compile_stage

with rule(snakemake) as context:
    compile_stage(
        context,
        graph=Path(snakemake.input.graph),
        profile=Path(snakemake.input.profile),
        links=Path(snakemake.input.links),
        plan=Path(snakemake.input.plan),
        program=Path(snakemake.output.program),
    )
