# Which operators share a kernel: every grouping of a step's operators is priced, the cheapest are measured -> table ->
# picture. Most networks are blocks that PyTorch defines: `make figures/fusion/gap.pdf` sees to it that it is there.


rule fusion_exhaustive:
    input:
        own=network_file,
    output:
        optimum="results/{machine}/{scale}/fusion/{network}/{step}/optimum.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/optimum.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/optimum.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
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
        fusion=fusion_exhaustive,
        options=profile_options,
        run=run_options,
        seed=STUDY.config.seed,
    message:
        "Pricing every grouping of the operators of {wildcards.network} ({wildcards.scale}, {wildcards.step})"
    script:
        "../workflow/scripts/fusion.py"


rule fusion_search:
    input:
        own=network_file,
    output:
        search="results/{machine}/{scale}/fusion/{network}/{step}/{algorithm}-{search_seed}.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/{algorithm}-{search_seed}.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/{algorithm}-{search_seed}.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
        algorithm="|".join(inputs.SEARCHES),
        search_seed=r"\d+",
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
        fusion=fusion_search,
        run=run_options,
        seed=STUDY.config.seed,
    message:
        "Searching groupings of the operators of {wildcards.network} ({wildcards.scale}, {wildcards.step}): {wildcards.algorithm}"
    script:
        "../workflow/scripts/fusion.py"


rule figure_fusion:
    input:
        unpack(fusion_files),
    output:
        pdf="figures{on}/fusion/{figure}.pdf",
        png=picture("figures{on}/fusion/{figure}.png"),
        csv=table("figures{on}/fusion/{figure}.csv"),
    log:
        "logs/figures{on}/fusion/{figure}.log",
    benchmark:
        "logs/figures{on}/fusion/{figure}.benchmark.tsv"
    wildcard_constraints:
        on=r"(/[A-Za-z0-9_.-]+-\d+t)?",
        figure="|".join(inputs.FUSION_FIGURES),
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
        "../workflow/scripts/figure_fusion.py"


rule fusion_figures:
    input:
        [f"figures/fusion/{name}.pdf" for name in inputs.FUSION_FIGURES],
