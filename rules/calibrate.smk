rule calibrate:
    output:
        links=in_report(
            "results/{machine}/links.json", "machine", "Machine", lambda wildcards: {"machine": wildcards.machine}
        ),
    log:
        "logs/{machine}/calibrate.log",
    benchmark:
        "logs/{machine}/calibrate.benchmark.tsv"
    conda:
        "../envs/measure.yaml"
    threads: timing_threads
    resources:
        **NODE,
        timing=1,
        mem_mb=memory_mb(2000),
        runtime=10,
    params:
        machine=machine_params,
        patience_s=STUDY.config.profile.patience_s,
        seed=STUDY.config.seed,
    message:
        "Measuring how fast {wildcards.machine} copies between its memories"
    script:
        "../workflow/scripts/calibrate.py"
