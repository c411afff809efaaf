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
            lambda wildcards: {
                name: wildcards[name] for name in ("network", "optimizer", "limit", "scale", "machine")
            },
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
    message:
        "Running {wildcards.network} ({wildcards.scale}): {wildcards.optimizer}, limit {wildcards.limit}"
    script:
        "../workflow/scripts/run.py"
