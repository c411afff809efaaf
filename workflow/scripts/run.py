"""Rule run: verify a program, time it, and record both; with it others of the network that the same call asks for."""

from collections.abc import Sequence
from pathlib import Path

from autotm.stages.ahead import Call, Job, Waiting, take, work

given = snakemake.input
job = Job(snakemake.output.record, (given.plan, given.program), snakemake.log[0])
decides = {key: snakemake.params[key] for key in ("machine", "options", "seed")}
waiting = Waiting(decides, (given.graph, given.library, given.profile, given.links))

if not take(job, waiting):
    # Not imported where a job only takes its record.
    from autotm.model.config import RunConfig
    from autotm.stages import RunsStage
    from autotm.stages.jobs import rule

    with (
        rule(snakemake, lambda number: waiting.is_done(job, number)) as context,
        RunsStage(
            context,
            RunConfig(**snakemake.params.options),
            graph=Path(given.graph),
            library=Path(given.library),
            profile=Path(given.profile),
            links=Path(given.links),
            reference=Path(snakemake.params.reference),
        ) as runs,
    ):

        def measure(one: Job, record: Path) -> None:
            """Measure the program of a job."""
            plan, program = map(Path, one.inputs)
            runs.run(program=program, plan=plan, record=record)

        def measure_in_turn(some: Sequence[Job]) -> None:
            """Measure the programs of several jobs beside one all-fast step."""
            runs.measure_in_turn([(Path(program), Path(plan)) for plan, program in (one.inputs for one in some)])

        work(job, waiting, measure, Call.told(), begin=measure_in_turn, together=runs.IN_TURN)
