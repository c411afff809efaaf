"""Rule run: verify a program, time it, and record both."""

from pathlib import Path

from autotm.model.study import RunConfig
from autotm.stages import run_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    run_stage(
        context,
        RunConfig(**snakemake.params.options),
        graph=Path(snakemake.input.graph),
        library=Path(snakemake.input.library),
        program=Path(snakemake.input.program),
        plan=Path(snakemake.input.plan),
        profile=Path(snakemake.input.profile),
        links=Path(snakemake.input.links),
        reference=Path(snakemake.params.reference),
        record=Path(snakemake.output.record),
    )
