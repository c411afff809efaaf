import time

from autotm.stages.jobs import Call, Job


# Jobs of this rule stay one for each record. The first of a network measures with its own program those of the others
# that the same call will start, in one process (src/autotm/stages/jobs/ahead.py); these then take their records.
def tell_runs_due():
    """Let jobs on this computer know which runs the call will do."""
    due = [job for job in workflow.dag.needrun_jobs() if job.rule.name == "run" and shares_its_network(job.wildcards)]
    Call(time.time(), tuple(map(run_due, due))).tell(Path("logs/runs_due.json"))


def run_due(job):
    """The files of a run, as its job finds them."""
    made = {file for other, files in workflow.dag.dependencies[job].items() if workflow.dag.needrun(other) for file in files}
    own = (job.input.plan, job.input.program)
    return Job(*map(str, (job.output.record, *own, job.log[0])), made=tuple(str(file) for file in own if file in made))


def shares_its_network(wildcards):
    """Not on a GPU, nor where Linux itself places pages in two memories, in the order in which it is asked for them."""
    machine = machine_of(wildcards)
    is_placed_by_linux = wildcards.optimizer.startswith("linux-") and machine.slow_tier.kind == "numa"
    return not (machine.fast_operands_only or is_placed_by_linux)


rule run:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        library=compiled_kernels,
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
        plan="results/{machine}/{scale}/{network}/{optimizer}/{limit}/plan.json",
        program="results/{machine}/{scale}/{network}/{optimizer}/{limit}/program.json",
    output:
        record=in_report(
            "results/{machine}/{scale}/{network}/{optimizer}/{limit}/record.json",
            "run",
            "Runs",
            {name: f"{{{name}}}" for name in ("network", "optimizer", "limit", "scale", "machine")},
        ),
    log:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/run.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/run.benchmark.tsv"
    conda:
        "../envs/measure.yaml"
    threads: timing_threads
    resources:
        **NODE,
        timing=1,
        mem_mb=scale_memory_mb,
        runtime=scale_minutes,
    params:
        machine=machine_params,
        options=run_options,
        seed=STUDY.config.seed,
        # Results of the plain step, shared by all programs of a network: a cache beside them, not an output.
        reference="results/{machine}/{scale}/{network}/reference.json",
    message:
        "Running {wildcards.network} ({wildcards.scale}): {wildcards.optimizer}, limit {wildcards.limit}"
    script:
        "../workflow/scripts/run.py"
