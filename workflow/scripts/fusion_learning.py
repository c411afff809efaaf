"""Rules fusion_problem, _rewards, _promises, _policies, _bench, placements: what decisions are worth, who learns it."""

from pathlib import Path

from autotm.model.config import FusionConfig, RunConfig, SolveConfig
from autotm.model.network_source import NetworkSource
from autotm.stages import fusion_learning as stages
from autotm.stages.context import PlacementInputs
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    params, given, context = snakemake.params, snakemake.input, job.context
    output = Path(snakemake.output[-1])
    match snakemake.rule:
        case "fusion_problem":
            searches = {name: Path(path) for name, path in given.items() if name not in {"graph", "optimum"}}
            stages.fusion_problem_stage(
                context,
                NetworkSource(**params.network),
                Path(given.graph),
                job.paths,
                Path(given.optimum),
                searches,
                output,
            )
        case "fusion_rewards":
            stages.fusion_rewards_stage(context, Path(given.problem), output)
        case "fusion_promises":
            stages.fusion_promises_stage(
                context,
                NetworkSource(**params.network),
                Path(given.graph),
                FusionConfig(**params.fusion),
                RunConfig(**params.run),
                job.paths,
                Path(given.problem),
                Path(given.rewards),
                output,
            )
        case "fusion_policies":
            several = ([Path(path) for path in given.get(key)] for key in ("problems", "rewards", "promises"))
            stages.fusion_policies_stage(context, *several, Path(snakemake.output.selection), output)
        case "placements":
            stages.placements_stage(
                context,
                FusionConfig(**params.fusion),
                SolveConfig(**params.options),
                PlacementInputs(job.paths),
                output,
            )
        case "fusion_bench":
            stages.fusion_bench_stage(
                context,
                NetworkSource(**params.network),
                Path(given.graph),
                FusionConfig(**params.fusion),
                RunConfig(**params.run),
                job.paths,
                Path(given.policies),
                output,
                is_held_out=params.is_held_out,
            )
