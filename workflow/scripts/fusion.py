"""Rule fusion_exhaustive: price every grouping of a step's operators, and measure the cheapest."""

from pathlib import Path

from autotm.model.config import FusionConfig, ProfileConfig, RunConfig
from autotm.model.network_source import NetworkSource
from autotm.stages.fusion import fusion_exhaustive_stage
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    params = snakemake.params
    fusion_exhaustive_stage(
        job.context,
        NetworkSource(**params.network),
        FusionConfig(**params.fusion),
        ProfileConfig(**params.options),
        RunConfig(**params.run),
        job.paths,
        Path(snakemake.output.optimum),
        is_inference=snakemake.wildcards.step == "inference",
    )
