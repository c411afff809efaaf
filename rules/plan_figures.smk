# Figures of what was timed and planned, before anything runs: one kernel's placements, one plan's addresses.


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
        **NODE,
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
        unpack(convolution_files),
    output:
        pdf="figures/{on}kernel_plot.pdf",
        png=picture("figures/{on}kernel_plot.png"),
        csv=table("figures/{on}kernel_plot.csv"),
    log:
        "logs/figures/{on}kernel_plot.log",
    benchmark:
        "logs/figures/{on}kernel_plot.benchmark.tsv"
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
        unpack(heap_files),
    output:
        pdf="figures/{on}heap.pdf",
        png=picture("figures/{on}heap.png", caption="plan_figure"),
        csv=table("figures/{on}heap.csv"),
    log:
        "logs/figures/{on}heap.log",
    benchmark:
        "logs/figures/{on}heap.benchmark.tsv"
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


rule links:
    input:
        unpack(link_files),
    output:
        pdf="figures/{on}links.pdf",
        png=picture("figures/{on}links.png"),
        csv=table("figures/{on}links.csv"),
    log:
        "logs/figures/{on}links.log",
    benchmark:
        "logs/figures/{on}links.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: what copies between the two memories reach"
    script:
        "../workflow/scripts/links.py"
