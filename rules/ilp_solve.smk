rule ilp_solve:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
    output:
        plan="results/{machine}/{scale}/{network}/{optimizer}/{limit}/plan.json",
    log:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/ilp_solve.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/ilp_solve.benchmark.tsv"
    # Before programs and runs: of a network, these are then made, and measured, together.
    priority: 2
    conda:
        "../envs/solve.yaml"
    # Solves do not depend on each other and HiGHS searches with one worker: there is one process for each core.
    threads: 1
    resources:
        mem_mb=memory_mb(2000),
        runtime=solve_minutes,
    params:
        machine=machine_params,
        placement=placement_params,
        options=STUDY.config.solve.model_dump(),
        seed=STUDY.config.seed,
        counts=STUDY.config.counts,
    message:
        "Placing the tensors of {wildcards.network}: {wildcards.optimizer}, limit {wildcards.limit}"
    script:
        "../workflow/scripts/ilp_solve.py"
