# Figures that show runs. Those with a folder are drawn for any workload: figures/test_vgg/fig7.pdf.
rule figure_7:
    input:
        records=rival_records,
    output:
        pdf="figures/{on}{folder}fig7.pdf",
        png=picture("figures/{on}{folder}fig7.png"),
        csv=table("figures/{on}{folder}fig7.csv"),
    log:
        "logs/figures/{on}{folder}fig7.log",
    benchmark:
        "logs/figures/{on}{folder}fig7.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: speed-up over all slow, by network, optimizer and limit"
    script:
        "../workflow/scripts/figure_of_records.py"


use rule figure_7 as figure_9 with:
    input:
        records=comparison_records,
    output:
        pdf="figures/{on}{folder}fig9.pdf",
        png=picture("figures/{on}{folder}fig9.png"),
        csv=table("figures/{on}{folder}fig9.csv"),
    log:
        "logs/figures/{on}{folder}fig9.log",
    benchmark:
        "logs/figures/{on}{folder}fig9.benchmark.tsv"
    params:
        style=STUDY.config.style.model_dump(),
        prices=STUDY.config.figures.prices.model_dump(),
    message:
        "Drawing {output.pdf}: performance against the price of memory"


use rule figure_7 as figure_11 with:
    input:
        records=predicted_records,
    output:
        pdf="figures/{on}{folder}fig11.pdf",
        png=picture("figures/{on}{folder}fig11.png"),
        csv=table("figures/{on}{folder}fig11.csv"),
    log:
        "logs/figures/{on}{folder}fig11.log",
    benchmark:
        "logs/figures/{on}{folder}fig11.benchmark.tsv"
    message:
        "Drawing {output.pdf}: error of the predictions"


use rule figure_7 as ilp_times with:
    input:
        records=comparison_records,
    output:
        pdf="figures/{on}{folder}ilp_times.pdf",
        png=picture("figures/{on}{folder}ilp_times.png"),
        csv=table("figures/{on}{folder}ilp_times.csv"),
    log:
        "logs/figures/{on}{folder}ilp_times.log",
    benchmark:
        "logs/figures/{on}{folder}ilp_times.benchmark.tsv"
    message:
        "Drawing {output.pdf}: time to find placements, by network and optimizer"


use rule figure_7 as price_performance with:
    input:
        records=comparison_records,
    output:
        pdf="figures/{on}{folder}price_performance.pdf",
        png=picture("figures/{on}{folder}price_performance.png"),
        csv=table("figures/{on}{folder}price_performance.csv"),
    log:
        "logs/figures/{on}{folder}price_performance.log",
    benchmark:
        "logs/figures/{on}{folder}price_performance.benchmark.tsv"
    params:
        style=STUDY.config.style.model_dump(),
        prices=STUDY.config.figures.prices.model_dump(),
    message:
        "Drawing {output.pdf}: performance over the price of the memory that a run took"


use rule figure_7 as cost_performance with:
    input:
        records=comparison_records,
    output:
        pdf="figures/{on}{folder}cost_performance.pdf",
        png=picture("figures/{on}{folder}cost_performance.png"),
        csv=table("figures/{on}{folder}cost_performance.csv"),
    log:
        "logs/figures/{on}{folder}cost_performance.log",
    benchmark:
        "logs/figures/{on}{folder}cost_performance.benchmark.tsv"
    params:
        style=STUDY.config.style.model_dump(),
        prices=STUDY.config.figures.prices.model_dump(),
    message:
        "Drawing {output.pdf}: price of memory over performance, by limit and network"


rule figure_8:
    input:
        unpack(large_files),
    output:
        pdf="figures/{on}fig8.pdf",
        png=picture("figures/{on}fig8.png"),
        csv=table("figures/{on}fig8.csv"),
    log:
        "logs/figures/{on}fig8.log",
    benchmark:
        "logs/figures/{on}fig8.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: speed-up of large networks over memory-mode"
    script:
        "../workflow/scripts/figure_8.py"


use rule figure_8 as figure_8_talk with:
    output:
        pdf="figures/{on}fig8_talk.pdf",
        png=picture("figures/{on}fig8_talk.png"),
        csv=table("figures/{on}fig8_talk.csv"),
    log:
        "logs/figures/{on}fig8_talk.log",
    benchmark:
        "logs/figures/{on}fig8_talk.benchmark.tsv"
    message:
        "Drawing {output.pdf}: figure 8 as for a talk"


use rule figure_7 as front with:
    input:
        records=front_records,
    output:
        pdf="figures/{on}front.pdf",
        png=picture("figures/{on}front.png"),
        csv=table("figures/{on}front.csv"),
    log:
        "logs/figures/{on}front.log",
    benchmark:
        "logs/figures/{on}front.benchmark.tsv"
    message:
        "Drawing {output.pdf}: steps an hour from all slow to all fast"


use rule figure_7 as figure_10 with:
    input:
        records=case_study_records,
    output:
        pdf="figures/{on}fig10.pdf",
        png=picture("figures/{on}fig10.png"),
        csv=table("figures/{on}fig10.csv"),
    log:
        "logs/figures/{on}fig10.log",
    benchmark:
        "logs/figures/{on}fig10.benchmark.tsv"
    message:
        "Drawing {output.pdf}: slow-down, I/O in fast memory and bytes moved against the fast memory allowed"


use rule figure_7 as figure_10a_all_fast with:
    input:
        records=case_study_records,
    output:
        pdf="figures/{on}fig10a_all_fast.pdf",
        png=picture("figures/{on}fig10a_all_fast.png"),
        csv=table("figures/{on}fig10a_all_fast.csv"),
    log:
        "logs/figures/{on}fig10a_all_fast.log",
    benchmark:
        "logs/figures/{on}fig10a_all_fast.benchmark.tsv"
    message:
        "Drawing {output.pdf}: figure 10a, the all-fast step alone"


use rule figure_7 as figure_10a_all_slow with:
    input:
        records=case_study_records,
    output:
        pdf="figures/{on}fig10a_all_slow.pdf",
        png=picture("figures/{on}fig10a_all_slow.png"),
        csv=table("figures/{on}fig10a_all_slow.csv"),
    log:
        "logs/figures/{on}fig10a_all_slow.log",
    benchmark:
        "logs/figures/{on}fig10a_all_slow.benchmark.tsv"
    message:
        "Drawing {output.pdf}: figure 10a, the all-slow step alone"


use rule figure_7 as figure_10a_synchronous with:
    input:
        records=case_study_records,
    output:
        pdf="figures/{on}fig10a_synchronous.pdf",
        png=picture("figures/{on}fig10a_synchronous.png"),
        csv=table("figures/{on}fig10a_synchronous.csv"),
    log:
        "logs/figures/{on}fig10a_synchronous.log",
    benchmark:
        "logs/figures/{on}fig10a_synchronous.benchmark.tsv"
    message:
        "Drawing {output.pdf}: figure 10a, synchronous plans at all limits"


# On machines of its own, so it has no figures/MACHINE/devices.pdf.
rule devices:
    input:
        records=device_records,
    output:
        pdf="figures/devices.pdf",
        png=picture("figures/devices.png"),
        csv=table("figures/devices.csv"),
    log:
        "logs/figures/devices.log",
    benchmark:
        "logs/figures/devices.benchmark.tsv"
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
        devices=device_names,
    message:
        "Drawing {output.pdf}: slow-down on each of several slow memories"
    script:
        "../workflow/scripts/figure_of_devices.py"
