"""Rule run: verify a program, time it, and record both; with it others of the network that the same call asks for."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from autotm.stages.ahead import Call, Job, Waiting, take, work

inputs = snakemake.input
own = Job(snakemake.output.record, (inputs.plan, inputs.program), snakemake.log[0])
decides = {key: snakemake.params[key] for key in ("machine", "options", "seed")}
waiting = Waiting(decides, (inputs.graph, inputs.library, inputs.profile, inputs.links))

if not take(own, waiting):
    # Not imported where a job only takes its record.
    from autotm.model.config import RunConfig
    from autotm.model.limit import Limit
    from autotm.stages.jobs import rule
    from autotm.stages.run import RunsStage

    with (
        rule(snakemake, lambda number: waiting.is_done(own, number)) as job,
        closing(RunsStage(job.context, RunConfig(**snakemake.params.options), job.paths)) as runs,
    ):

        def placement_of(one: Job) -> tuple[str, Limit]:
            """Tell the optimizer and the limit of a job."""
            optimizer, limit = one.placement
            return optimizer, Limit.parse(limit)

        def measure(one: Job, record: Path) -> None:
            """Measure the program of a job."""
            runs.run(*placement_of(one), record)

        def measure_in_turn(some: Sequence[Job]) -> None:
            """Measure the programs of several jobs beside one all-fast step."""
            runs.measure_in_turn([placement_of(one) for one in some])

        work(own, waiting, measure, Call.read(), begin=measure_in_turn, together=runs.IN_TURN)
