import time

from autotm.stages.jobs import Call, Job


# Jobs of rule run stay one for each record. The first of a network measures with its own program those of the others
# that the same call will start, in one process (src/autotm/stages/jobs/ahead.py); these then take their records.
def tell_runs_due():
    """Let jobs on this computer know which runs the call will do."""
    due = [job for job in workflow.dag.needrun_jobs() if job.rule.name == "run" and shares_its_network(job.wildcards)]
    Call(time.time(), tuple(map(run_due, due))).tell(Path("logs/runs_due.json"))


def run_due(job):
    """The files of a run, as its job finds them."""
    made = {
        file for other, files in workflow.dag.dependencies[job].items() if workflow.dag.needrun(other) for file in files
    }
    own = (job.input.plan, job.input.program)
    return Job(*map(str, (job.output.record, *own, job.log[0])), made=tuple(str(file) for file in own if file in made))


def shares_its_network(wildcards):
    """Not on a GPU, nor where Linux itself places pages in two memories, in the order in which it is asked for them."""
    machine = machine_of(wildcards)
    is_placed_by_linux = wildcards.optimizer.startswith("linux-") and machine.slow_tier.kind == "numa"
    return not (machine.fast_operands_only or is_placed_by_linux)
