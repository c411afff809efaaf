"""Rule records_table: all runs of the study in one table."""

from pathlib import Path

from autotm.stages.jobs import rule
from autotm.study.records import table_of_runs, write_runs

with rule(snakemake):
    table = table_of_runs([Path(record) for record in snakemake.input.records])
    write_runs(table, Path(snakemake.output.csv))
    write_runs(table, Path(snakemake.output.parquet))
