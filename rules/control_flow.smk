# Control flow within compiled functions: each model in all systems -> table -> picture. PyTorch, the yardstick, must be
# where Snakemake is: `make figures/control_flow/fig15.pdf` sees to it.


def control_cases(figure):
    """The files that a figure of control flow shows: each of a model of the scale, and one of its cases."""
    config, models = STUDY.config.control_flow, list(STUDY.scale.control_flow)
    loops, branches = ("lstm", "nasrnn"), ("blockdrop", "skipnet")
    cases = {
        "fig2": [(model, "b1") for model in ("seq2seq", "blockdrop", "rae")],
        "fig15": [(model, "b1") for model in (*loops, "attention", "seq2seq")],
        "fig16": [(model, "b1") for model in branches],
        "fig17": [(model, f"b1-ratio{ratio}") for model in branches for ratio in config.ratios],
        "fig18": [("rae", "b1")],
        "fig19": [(model, f"b1{more}") for model in models for more in ("", f"-threads{config.other_threads}")],
        "fig20": [(model, "search") for model in models],
        "hidden_size": [(model, f"b1-hidden{hidden}") for model in loops for hidden in config.hidden],
    }
    for batch in config.batches:  # A tree is one sample.
        cases[f"fig14_batch{batch}"] = [(model, f"b{batch}") for model in models if batch == 1 or model != "rae"]
    if figure not in cases:
        raise WorkflowError(f"no figure control_flow/{figure}: there are {', '.join(sorted(cases))}")
    return [(model, case) for model, case in cases[figure] if model in models]


def control_files(wildcards):
    """Those files on the machine that the figure's folder names."""
    machine = (wildcards.on or f"/{STUDY.machine.slug}").removeprefix("/")
    folder = f"results/{machine}/{STUDY.config.scale}/control_flow"
    return [f"{folder}/{model}/{case}.json" for model, case in control_cases(wildcards.figure)]


def control_sizes(wildcards):
    """Sizes of a model at a scale."""
    sizes = scale_of(wildcards).control_flow
    if wildcards.model not in sizes:
        raise WorkflowError(
            f"config/scales/{wildcards.scale}.yaml: control_flow has no sizes of {wildcards.model}; add them"
        )
    return sizes[wildcards.model]


rule control_flow_search:
    output:
        study="results/{machine}/{scale}/control_flow/{model}/search.json",
    log:
        "logs/{machine}/{scale}/control_flow/{model}/search.log",
    benchmark:
        "logs/{machine}/{scale}/control_flow/{model}/search.benchmark.tsv"
    wildcard_constraints:
        model=r"[a-z0-9]+",
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
        case=r"b\d+(-[a-z_]+\d+)*",
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
        figure=r"[a-z0-9_]+",
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
        [
            f"figures/control_flow/{name}.pdf"
            for name in (
                "fig2",
                *(f"fig14_batch{batch}" for batch in STUDY.config.control_flow.batches),
                *("fig15", "fig16", "fig17", "fig18", "fig19", "fig20", "hidden_size"),
            )
        ],
