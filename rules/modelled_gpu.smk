# Machines that are modelled (config/machines/modelled-*.yaml): times are computed, and nothing runs on them. What
# calibrate, ilp_solve and compile do, they do there too.
MODELLED_GPU = r"modelled-[A-Za-z0-9_.-]+-\d+t"


rule model_kernels:
    input:
        own=network_file,
    output:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
    log:
        "logs/{machine}/{scale}/{network}/model_kernels.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/model_kernels.benchmark.tsv"
    wildcard_constraints:
        machine=MODELLED_GPU,
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb(2000),
        runtime=30,
    params:
        machine=machine_params,
        network=network_params,
        seed=STUDY.config.seed,
    message:
        "Modelling the kernels of {wildcards.network} ({wildcards.scale}) on {wildcards.machine}"
    script:
        "../workflow/scripts/model_kernels.py"


ruleorder: model_kernels > kernel_profile
ruleorder: model_kernels > extrapolate


rule modelled_step:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
        plan=modelled_plan,
    output:
        step="results/{machine}/{scale}/{network}/{optimizer}/{limit}/modelled.json",
    log:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/modelled.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/modelled.benchmark.tsv"
    wildcard_constraints:
        machine=MODELLED_GPU,
    conda:
        "../envs/solve.yaml"
    threads: 1
    resources:
        mem_mb=memory_mb(2000),
        runtime=10,
    params:
        machine=machine_params,
        options=STUDY.config.solve.model_dump(),
        seed=STUDY.config.seed,
        counts=STUDY.config.counts,
    message:
        "Simulating a step of {wildcards.network} ({wildcards.scale}): {wildcards.optimizer}, limit {wildcards.limit}"
    script:
        "../workflow/scripts/modelled_step.py"
