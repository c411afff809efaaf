rule timing_study:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        library="results/{machine}/{scale}/{network}/kernels.so",
        links="results/{machine}/links.json",
    output:
        study="results/{machine}/{scale}/{network}/timing_study.json",
    log:
        "logs/{machine}/{scale}/{network}/timing_study.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/timing_study.benchmark.tsv"
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
        options=profile_options,
        repeats=STUDY.config.timing_study.repeats,
        seed=STUDY.config.seed,
    message:
        "Timing the kernels of {wildcards.network} ({wildcards.scale}) one at a time, together and alone"
    script:
        "../workflow/scripts/timing_study.py"


rule figure_timing_study:
    input:
        study=timing_study_file,
        recorded=STUDY.config.timing_study.recorded or [],
    output:
        pdf="{folder}/timing_study.pdf",
        png=picture("{folder}/timing_study.png"),
        csv=table("{folder}/timing_study.csv"),
        summary=table("{folder}/timing_study_summary.csv"),
    log:
        "logs/{folder}/timing_study.log",
    benchmark:
        "logs/{folder}/timing_study.benchmark.tsv"
    # No folder of a workload: the figure is of the study's own network.
    wildcard_constraints:
        folder=r"figures(/[A-Za-z0-9_.-]+-\d+t)?",
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: agreement, spread and cost of ways to time kernels"
    script:
        "../workflow/scripts/figure_timing_study.py"
