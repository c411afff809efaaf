rule compile:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
        plan="results/{machine}/{scale}/{network}/{optimizer}/{limit}/plan.json",
    output:
        program="results/{machine}/{scale}/{network}/{optimizer}/{limit}/program.json",
    log:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/compile.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/compile.benchmark.tsv"
    # Before runs: of a network, these are then measured together.
    priority: 1
    conda:
        "../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb(1000),
        runtime=10,
    params:
        machine=machine_params,
        seed=STUDY.config.seed,
    message:
        "Giving the tensors of {wildcards.network} their addresses: {wildcards.optimizer}, limit {wildcards.limit}"
    script:
        "../workflow/scripts/compile.py"
