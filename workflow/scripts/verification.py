"""Rule verification_table: tell which programs were compared with the plain step."""

from pathlib import Path

from autotm.stages.jobs import rule
from autotm.study.records import verify_records

with rule(snakemake):
    verify_records([Path(record) for record in snakemake.input.records], Path(snakemake.output.csv))
