# Figures of what was timed and planned, before anything runs: one kernel's placements, one plan's addresses.
HEAP = STUDY.config.figures.heap
HEAP_PATHS = STUDY.paths(HEAP.network)
HEAP_LIMIT = Limit.parse(HEAP.limit)


# Beside the networks, not one of them: its kernel is timed in all placements whatever the study's profiles have.
rule convolution_profile:
    input:
        links="results/{machine}/links.json",
    output:
        graph="results/{machine}/{scale}/convolution_graph.json",
        library="results/{machine}/{scale}/convolution_kernels.so",
        profile="results/{machine}/{scale}/convolution_profile.parquet",
    log:
        "logs/{machine}/{scale}/convolution_profile.log",
    benchmark:
        "logs/{machine}/{scale}/convolution_profile.benchmark.tsv"
    conda:
        "../envs/measure.yaml"
    threads: timing_threads
    resources:
        timing=1,
        mem_mb=scale_memory_mb,
        runtime=scale_minutes,
    params:
        machine=machine_params,
        convolution=STUDY.config.figures.kernel_plot.model_dump(),
        batch=convolution_batch,
        options=profile_options,
        seed=STUDY.config.seed,
        # Caches beside the results, not outputs.
        store="results/{machine}/kernels.sqlite",
        objects="results/{machine}/objects",
    message:
        "Timing one convolution ({wildcards.scale}) in all placements of its operands on {wildcards.machine}"
    script:
        "../workflow/scripts/convolution_profile.py"


rule kernel_plot:
    input:
        graph=STUDY.convolution_paths.graph,
        profile=STUDY.convolution_paths.profile,
    output:
        pdf="figures/kernel_plot.pdf",
        png=picture("figures/kernel_plot.png"),
        csv=table("figures/kernel_plot.csv"),
    log:
        "logs/figures/kernel_plot.log",
    benchmark:
        "logs/figures/kernel_plot.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: one convolution in all placements of its operands"
    script:
        "../workflow/scripts/kernel_plot.py"


rule heap:
    input:
        graph=HEAP_PATHS.graph,
        profile=HEAP_PATHS.profile,
        plan=HEAP_PATHS.plan(HEAP.optimizer, HEAP_LIMIT),
        program=HEAP_PATHS.program(HEAP.optimizer, HEAP_LIMIT),
    output:
        pdf="figures/heap.pdf",
        png=picture("figures/heap.png", caption="plan_figure"),
        csv=table("figures/heap.csv"),
    log:
        "logs/figures/heap.log",
    benchmark:
        "logs/figures/heap.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: addresses of the tensors of a plan over its predicted time"
    script:
        "../workflow/scripts/heap.py"
