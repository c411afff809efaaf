# Control flow within compiled functions: each model in all systems -> table -> picture. PyTorch, the yardstick, must be
# where Snakemake is: `make figures/control_flow/fig15.pdf` sees to it.


rule control_flow_search:
    output:
        study="results/{machine}/{scale}/control_flow/{model}/search.json",
    log:
        "logs/{machine}/{scale}/control_flow/{model}/search.log",
    benchmark:
        "logs/{machine}/{scale}/control_flow/{model}/search.benchmark.tsv"
    wildcard_constraints:
        model=r"[a-z0-9]+",
    priority: 1  # Figures are drawn side by side when all is measured.
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
        seed=STUDY.config.seed,
        sizes=control_sizes,
        control_flow=STUDY.config.control_flow.model_dump(),
    message:
        "Timing {wildcards.model} ({wildcards.scale}) as one function, after each set of rewrites"
    script:
        "../workflow/scripts/control_flow.py"


rule control_flow:
    input:
        search="results/{machine}/{scale}/control_flow/{model}/search.json",
    output:
        study="results/{machine}/{scale}/control_flow/{model}/{case}.json",
    log:
        "logs/{machine}/{scale}/control_flow/{model}/{case}.log",
    benchmark:
        "logs/{machine}/{scale}/control_flow/{model}/{case}.benchmark.tsv"
    wildcard_constraints:
        model=r"[a-z0-9]+",
        case=r"b\d+|hidden|ratio",
    priority: 1  # Figures are drawn side by side when all is measured.
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
        seed=STUDY.config.seed,
        sizes=control_sizes,
        control_flow=STUDY.config.control_flow.model_dump(),
    message:
        "Timing {wildcards.model} ({wildcards.scale}, {wildcards.case}) in all systems"
    script:
        "../workflow/scripts/control_flow.py"


rule figure_control_flow:
    input:
        studies=control_files,
    output:
        pdf="figures{on}/control_flow/{figure}.pdf",
        png=picture("figures{on}/control_flow/{figure}.png"),
        csv=table("figures{on}/control_flow/{figure}.csv"),
    log:
        "logs/figures{on}/control_flow/{figure}.log",
    benchmark:
        "logs/figures{on}/control_flow/{figure}.benchmark.tsv"
    wildcard_constraints:
        on=r"(/[A-Za-z0-9_.-]+-\d+t)?",
        figure="|".join(inputs.CONTROL_FIGURES),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}"
    script:
        "../workflow/scripts/figure_control_flow.py"


rule control_flow_figures:
    input:
        [f"figures/control_flow/{name}.pdf" for name in inputs.CONTROL_FIGURES],
