# Figures: what was measured, planned or modelled -> table -> picture. A folder may name a machine, and a workload:
# figures/laptop-1t/fig10.pdf, figures/test_vgg/fig7.pdf, figures/laptop-1t/test_vgg/fig7.pdf.

# Each figure, by name: the function that gives its files (a list is one of records), and what it shows.
# Of a workload, on one machine: functions of the study there and the workload.
OF_WORKLOADS = {
    "fig7": (inputs.rival_records, "speed-up over all slow, by network, optimizer and limit"),
    "fig9": (inputs.comparison_records, "performance against the price of memory"),
    "fig11": (inputs.predicted_records, "error of the predictions"),
    "ilp_times": (inputs.comparison_records, "time to find placements, by network and optimizer"),
    "price_performance": (
        inputs.comparison_records,
        "performance over the price of the memory that a run took",
    ),
    "cost_performance": (inputs.comparison_records, "price of memory over performance, by limit and network"),
}
# On one machine: functions of the study there.
OF_MACHINES = {
    "fig8": (inputs.large_files, "speed-up of large networks over memory-mode"),
    "fig8_talk": (inputs.large_files, "figure 8 as for a talk"),
    "fig10": (
        case_study_records,
        "slow-down, I/O in fast memory and bytes moved against the fast memory allowed",
    ),
    "fig10a_all_fast": (case_study_records, "figure 10a, the all-fast step alone"),
    "fig10a_all_slow": (case_study_records, "figure 10a, the all-slow step alone"),
    "fig10a_synchronous": (case_study_records, "figure 10a, synchronous plans at all limits"),
    "front": (inputs.front_records, "steps an hour from all slow to all fast"),
    "kernel_plot": (convolution_files, "one convolution in all placements of its operands"),
    "heap": (inputs.heap_files, "addresses of the tensors of a plan over its predicted time"),
    "links": (inputs.link_files, "what copies between the two memories reach"),
}
# On machines of their own: functions of the study.
OF_THE_STUDY = {
    "fig12": (gpu_steps, "speed-up over managed memory on a GPU"),
    "fig12_timeline": (gpu_timeline, "what the engines of a GPU do in one step"),
    "devices": (device_records, "slow-down on each of several slow memories"),
}
FIGURES = OF_WORKLOADS | OF_MACHINES | OF_THE_STUDY


rule figure:
    input:
        unpack(figure_files),
    output:
        pdf="{folder}/{figure}.pdf",
        png=picture("{folder}/{figure}.png"),
        csv=table("{folder}/{figure}.csv"),
    log:
        "logs/{folder}/{figure}.log",
    benchmark:
        "logs/{folder}/{figure}.benchmark.tsv"
    wildcard_constraints:
        figure="|".join(FIGURES),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
        settings=figure_settings,
        shows=lambda wildcards: FIGURES[wildcards.figure][1],
    message:
        "Drawing {output.pdf}: {params.shows}"
    script:
        "../workflow/scripts/figure.py"


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
    message:
        "Timing one convolution ({wildcards.scale}) in all placements of its operands on {wildcards.machine}"
    script:
        "../workflow/scripts/convolution_profile.py"
