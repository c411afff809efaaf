"""Rule ilp_solve: place the tensors of a step within a limit."""

from pathlib import Path

from autotm.model.step import Limit
from autotm.model.study import SolveConfig
from autotm.stages import Given, ilp_solve_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    ilp_solve_stage(
        context,
        snakemake.params.placement["optimizer"],
        Limit.parse(snakemake.params.placement["limit"]),
        SolveConfig(**snakemake.params.options),
        Given(Path(snakemake.input.graph), Path(snakemake.input.profile), Path(snakemake.input.links)),
        plan=Path(snakemake.output.plan),
    )
