"""Rule tune: search better schedules for a step's kernels."""

from pathlib import Path

from autotm.model.config import ProfileConfig, TuneConfig
from autotm.model.network_source import NetworkSource
from autotm.stages import tune_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    tune_stage(
        context,
        NetworkSource(**snakemake.params.network),
        snakemake.wildcards.scale,
        TuneConfig(**snakemake.params.options),
        ProfileConfig(**snakemake.params.timing),
        store=Path(snakemake.params.store),
        report=Path(snakemake.output.report),
    )
