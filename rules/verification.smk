# What is read off records without drawing: are all programs verified, and all runs as one table.
rule verification_table:
    input:
        records=lambda _: or_stop(STUDY.verification_records),
    output:
        csv=table(STUDY.table("verification.csv"), category="Tables"),
    log:
        "logs/verification.log",
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    message:
        "Collecting what was verified bit for bit: {output.csv}"
    script:
        "../workflow/scripts/verification.py"


rule verification:
    input:
        rules.verification_table.output.csv,


rule records_table:
    input:
        records=lambda _: or_stop(STUDY.configured_records),
    output:
        csv=table(STUDY.table("records.csv"), category="Tables"),
        parquet=STUDY.table("records.parquet"),
    log:
        "logs/records_table.log",
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    message:
        "Putting all runs into one table: {output.csv}"
    script:
        "../workflow/scripts/records_table.py"
