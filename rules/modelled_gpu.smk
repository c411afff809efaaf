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


rule modelled_plan:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
        plan="results/{machine}/{scale}/{network}/{optimizer}/{limit}/plan.json",
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


use rule modelled_plan as modelled_rival with:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
    wildcard_constraints:
        machine=MODELLED_GPU,
        optimizer="|".join(GPU_RIVALS),


ruleorder: modelled_rival > modelled_plan


# On a machine of kind cuda it shows records, which rule run makes.
rule figure_12:
    input:
        steps=gpu_steps,
    output:
        pdf="figures/fig12.pdf",
        png=picture("figures/fig12.png"),
        csv=table("figures/fig12.csv"),
    log:
        "logs/figures/fig12.log",
    benchmark:
        "logs/figures/fig12.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: speed-up over managed memory on a GPU"
    script:
        "../workflow/scripts/figure_12.py"


use rule figure_12 as figure_12_timeline with:
    input:
        steps=gpu_timeline,
    output:
        pdf="figures/fig12_timeline.pdf",
        png=picture("figures/fig12_timeline.png"),
        csv=table("figures/fig12_timeline.csv"),
    log:
        "logs/figures/fig12_timeline.log",
    benchmark:
        "logs/figures/fig12_timeline.benchmark.tsv"
    message:
        "Drawing {output.pdf}: what the engines of a GPU do in one step"
