"""Rules fusion_graph, fusion_exhaustive and fusion_search: find groupings of a step's operators that take less time."""

from pathlib import Path

from autotm.model.config import FusionConfig, ProfileConfig, RunConfig
from autotm.model.network_source import NetworkSource
from autotm.stages import fusion as stages
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    params, wildcards, context = snakemake.params, snakemake.wildcards, job.context
    source = NetworkSource(**params.network)
    match snakemake.rule:
        case "fusion_graph":
            outputs = {step: Path(path) for step, path in snakemake.output.items()}
            stages.fusion_graph_stage(context, source, job.paths, outputs)
        case "fusion_exhaustive":
            stages.fusion_exhaustive_stage(
                context,
                source,
                Path(snakemake.input.graph),
                FusionConfig(**params.fusion),
                ProfileConfig(**params.options),
                RunConfig(**params.run),
                job.paths,
                Path(snakemake.output.optimum),
            )
        case "fusion_search":
            stages.fusion_search_stage(
                context,
                source,
                Path(snakemake.input.graph),
                FusionConfig(**params.fusion),
                RunConfig(**params.run),
                job.paths,
                Path(snakemake.output.search),
                algorithm=wildcards.algorithm,
                search_seed=int(wildcards.search_seed),
            )
