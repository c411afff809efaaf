# Optional: nothing depends on it. What it finds lies in the kernel store, where kernel_profile looks when it runs next.
rule tune:
    input:
        own=network_file,
    output:
        report="results/{machine}/{scale}/{network}/tuned.json",
    log:
        "logs/{machine}/{scale}/{network}/tune.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/tune.benchmark.tsv"
    conda:
        "../envs/tune.yaml"
    threads: timing_threads
    resources:
        **NODE,
        timing=1,
        mem_mb=scale_memory_mb,
        # A killed search goes on where it was: a day on a cluster at a time.
        runtime=1440,
    params:
        machine=machine_params,
        network=network_params,
        options=STUDY.config.tune.model_dump(),
        timing=profile_options,
        seed=STUDY.config.seed,
        store="results/{machine}/kernels.sqlite",
    message:
        "Searching better schedules for the kernels of {wildcards.network} ({wildcards.scale}) on {wildcards.machine}"
    script:
        "../workflow/scripts/tune.py"
