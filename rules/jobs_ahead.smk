import time

from autotm.stages.ahead import Call, Job

# Plans, programs and records stay one job each. The first job of such a rule for a network works, in its process, for
# those of the others that the same call will start (src/autotm/stages/ahead.py); these then take their outputs.
OWN_INPUTS = {"ilp_solve": (), "compile": ("plan",), "run": ("plan", "program")}


def tell_jobs_due():
    """Let jobs on this computer know which others the call will do."""
    due = [job for job in workflow.dag.needrun_jobs() if job.rule.name in OWN_INPUTS and shares_its_network(job)]
    Call(time.time(), tuple(map(job_due, due))).tell(Path("logs/jobs_due.json"))


def job_due(job):
    """The files of a job, as it finds them itself."""
    made = {
        file for other, files in workflow.dag.dependencies[job].items() if workflow.dag.needrun(other) for file in files
    }
    own = [job.input[name] for name in OWN_INPUTS[job.rule.name]]
    of_call = tuple(str(file) for file in own if file in made)
    return Job(str(job.output[0]), tuple(map(str, own)), str(job.log[0]), of_call)


def shares_its_network(job):
    """Runs not on a GPU, nor where Linux itself places pages in two memories, in the order in which it is asked."""
    machine = machine_of(job.wildcards)
    is_placed_by_linux = job.wildcards.optimizer.startswith("linux-") and machine.slow_tier.kind == "numa"
    return job.rule.name != "run" or not (machine.fast_operands_only or is_placed_by_linux)
