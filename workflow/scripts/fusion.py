"""Rules fusion_exhaustive and fusion_search: find groupings of a step's operators that take less time."""

from pathlib import Path

from autotm.model.config import FusionConfig, ProfileConfig, RunConfig
from autotm.model.network_source import NetworkSource
from autotm.stages.fusion import fusion_exhaustive_stage, fusion_search_stage
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    params, wildcards = snakemake.params, snakemake.wildcards
    source, fusion, run = NetworkSource(**params.network), FusionConfig(**params.fusion), RunConfig(**params.run)
    is_inference = wildcards.step == "inference"
    if snakemake.rule == "fusion_search":
        fusion_search_stage(
            job.context,
            source,
            fusion,
            run,
            job.paths,
            Path(snakemake.output.search),
            is_inference=is_inference,
            algorithm=wildcards.algorithm,
            search_seed=int(wildcards.search_seed),
        )
    else:
        profile, output = ProfileConfig(**params.options), Path(snakemake.output.optimum)
        fusion_exhaustive_stage(job.context, source, fusion, profile, run, job.paths, output, is_inference=is_inference)
