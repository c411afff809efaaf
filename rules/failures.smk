# When jobs fail, the last thing on the screen is one page: what failed, why, what to do, and what is done already.
import atexit
import sys

from autotm.stages.jobs import FailedJob, page


def failed_jobs():
    """The jobs that failed, with the reasons that they left."""
    failed = [job for one in workflow.scheduler.failed for job in (one.jobs if one.is_group() else [one])]
    return [FailedJob.read(job.rule.name, dict(job.wildcards.items()), Path(job.log[0])) for job in failed]


def failure_page():
    """The page, for what was asked for."""
    jobs = [job for job in workflow.dag.jobs if job.output]
    due = set(workflow.dag.needrun_jobs())
    done = [job for job in jobs if job not in due]
    made, asked = ({file for job in some for file in job.output if file.endswith(".pdf")} for some in (done, jobs))
    return page(failed_jobs(), len(done), len(jobs), sorted(made), sorted(asked - made))


# Snakemake says a few more lines after this, so the page waits for its end.
onerror:
    atexit.register(print, failure_page(), file=sys.stderr, flush=True)
