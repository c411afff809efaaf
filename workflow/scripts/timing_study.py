"""Rule timing_study: time the kernels of a step in several ways."""

from pathlib import Path

from autotm.model.config import ProfileConfig
from autotm.stages import timing_study_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    timing_study_stage(
        context,
        snakemake.params.repeats,
        ProfileConfig(**snakemake.params.options),
        graph=Path(snakemake.input.graph),
        library=Path(snakemake.input.library),
        links=Path(snakemake.input.links),
        study=Path(snakemake.output.study),
    )
