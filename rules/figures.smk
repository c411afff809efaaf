rule figure_7:
    input:
        records=workload_records,
    output:
        pdf="figures/{folder}fig7.pdf",
        png="figures/{folder}fig7.png",
        csv="figures/{folder}fig7.csv",
    log:
        "logs/figures/{folder}fig7.log",
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        name="fig7",
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: speed-up over all slow, by network, optimizer and limit"
    script:
        "../workflow/scripts/comparison_figure.py"


use rule figure_7 as figure_9 with:
    output:
        pdf="figures/{folder}fig9.pdf",
        png="figures/{folder}fig9.png",
        csv="figures/{folder}fig9.csv",
    log:
        "logs/figures/{folder}fig9.log",
    params:
        name="fig9",
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: performance against the price of memory"


use rule figure_7 as figure_11 with:
    output:
        pdf="figures/{folder}fig11.pdf",
        png="figures/{folder}fig11.png",
        csv="figures/{folder}fig11.csv",
    log:
        "logs/figures/{folder}fig11.log",
    params:
        name="fig11",
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}: error of the predictions"


rule figure_10:
    input:
        records=STUDY.case_study_records(STUDY.config.figures.fig10),
    output:
        pdf="figures/fig10.pdf",
        png="figures/fig10.png",
        csv="figures/fig10.csv",
    log:
        "logs/figures/fig10.log",
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing figure 10: slow-down, I/O in fast memory and bytes moved against the fast memory allowed"
    script:
        "../workflow/scripts/figure_10.py"
