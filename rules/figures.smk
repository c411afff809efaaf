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
