"""Rule compile: give every tensor of a plan its address; with it others of the network that the same call asks for."""

from pathlib import Path

from autotm.stages.ahead import Call, Job, Waiting, take, work

inputs = snakemake.input
own = Job(snakemake.output.program, (inputs.plan,), snakemake.log[0])
decides = {key: snakemake.params[key] for key in ("machine", "seed")}
waiting = Waiting(decides, (inputs.graph, inputs.profile, inputs.links))

if not take(own, waiting):
    # Not imported where a job only takes its program.
    from autotm.stages.context import PlacementInputs
    from autotm.stages.jobs import rule
    from autotm.stages.solve import compile_stage

    with rule(snakemake, lambda number: waiting.is_done(own, number)) as job:
        files = PlacementInputs(job.paths)

        def give_addresses(one: Job, program: Path) -> None:
            """Give the tensors of a job's plan their addresses."""
            compile_stage(job.context, files, plan=Path(one.inputs[0]), program=program)

        work(own, waiting, give_addresses, Call.read())
