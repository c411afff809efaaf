"""Rules fusion_graph, fusion_exhaustive and fusion_search: find groupings of a step's operators that take less time."""

from pathlib import Path

from autotm.model.config import FusionConfig, ProfileConfig, RunConfig
from autotm.model.network_source import NetworkSource
from autotm.stages import fusion as stages
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    params, wildcards, output = snakemake.params, snakemake.wildcards, Path(snakemake.output[0])
    source = NetworkSource(**params.network)
    if snakemake.rule == "fusion_graph":
        outputs = {step: Path(path) for step, path in snakemake.output.items()}
        stages.fusion_graph_stage(job.context, source, job.paths, outputs)
    else:
        graph, fusion, run = Path(snakemake.input.graph), FusionConfig(**params.fusion), RunConfig(**params.run)
    if snakemake.rule == "fusion_search":
        stages.fusion_search_stage(
            job.context,
            source,
            graph,
            fusion,
            run,
            job.paths,
            output,
            algorithm=wildcards.algorithm,
            search_seed=int(wildcards.search_seed),
        )
    elif snakemake.rule == "fusion_exhaustive":
        profile = ProfileConfig(**params.options)
        stages.fusion_exhaustive_stage(job.context, source, graph, fusion, profile, run, job.paths, output)
