"""Rule ilp_solve: place the tensors of a step within a limit; with it others of the network that the call asks for."""

from pathlib import Path

from autotm.stages.ahead import Call, Job, Waiting, take, work

inputs = snakemake.input
own = Job(snakemake.output.plan, (), snakemake.log[0])
decides = {key: snakemake.params[key] for key in ("machine", "options", "seed", "counts")}
waiting = Waiting(decides, (inputs.graph, inputs.profile, inputs.links))

if not take(own, waiting):
    # Not imported where a job only takes its plan.
    from autotm.model.config import SolveConfig
    from autotm.model.limit import Limit
    from autotm.stages.context import PlacementInputs
    from autotm.stages.jobs import rule
    from autotm.stages.solve import ilp_solve_stage

    with rule(snakemake, lambda number: waiting.is_done(own, number)) as job:
        config, files = SolveConfig(**snakemake.params.options), PlacementInputs(job.paths)

        def solve(one: Job, plan: Path) -> None:
            """Place the tensors as the path of a job says."""
            optimizer, limit = one.placement
            ilp_solve_stage(job.context, optimizer, Limit.parse(limit), config, files, plan=plan)

        work(own, waiting, solve, Call.read())
