rule kernel_profile:
    input:
        links="results/{machine}/links.json",
        own=network_file,
    output:
        graph="results/{machine}/{scale}/{network}/graph.json",
        library="results/{machine}/{scale}/{network}/kernels.so",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
    log:
        "logs/{machine}/{scale}/{network}/kernel_profile.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/kernel_profile.benchmark.tsv"
    wildcard_constraints:
        scale=r"(?![A-Za-z0-9_.-]+-modelled/)[A-Za-z0-9_.-]+",
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
        network=network_params,
        options=profile_options,
        seed=STUDY.config.seed,
        counts=STUDY.config.counts,
    message:
        "Compiling the training step of {wildcards.network} ({wildcards.scale}) and timing its kernels on {wildcards.machine}"
    script:
        "../workflow/scripts/kernel_profile.py"
