"""Rule modelled_step: simulate a step on a modelled GPU."""

from pathlib import Path

from autotm.model.config import SolveConfig
from autotm.model.limit import Limit
from autotm.stages import modelled_step_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    plan = snakemake.input.get("plan")
    modelled_step_stage(
        context,
        snakemake.wildcards.optimizer,
        Limit.parse(snakemake.wildcards.limit),
        SolveConfig(**snakemake.params.options),
        graph=Path(snakemake.input.graph),
        profile=Path(snakemake.input.profile),
        links=Path(snakemake.input.links),
        plan=Path(plan) if plan else None,
        step=Path(snakemake.output.step),
    )
