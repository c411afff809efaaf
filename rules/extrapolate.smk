rule extrapolate:
    input:
        graphs=lambda wildcards: small_batches(wildcards, "graph.json"),
        profiles=lambda wildcards: small_batches(wildcards, "profile.parquet"),
    output:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
    log:
        "logs/{machine}/{scale}/{network}/extrapolate.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/extrapolate.benchmark.tsv"
    wildcard_constraints:
        scale=r"[A-Za-z0-9_.-]+-modelled",
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb(2000),
        runtime=10,
    params:
        machine=machine_params,
        network=network_params,
        seed=STUDY.config.seed,
    message:
        "Modelling the step of {wildcards.network} ({wildcards.scale}) from its profiles at small batches"
    script:
        "../workflow/scripts/extrapolate.py"
