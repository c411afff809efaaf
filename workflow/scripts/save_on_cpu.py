"""Rule save_on_cpu: time PyTorch's own step, and record it."""

from pathlib import Path

from autotm.model.config import RunConfig
from autotm.model.limit import Limit
from autotm.model.network_source import NetworkSource
from autotm.stages import save_on_cpu_stage
from autotm.stages.jobs import rule

with rule(snakemake) as context:
    save_on_cpu_stage(
        context,
        NetworkSource(**snakemake.params.network),
        Limit.parse(snakemake.wildcards.limit),
        RunConfig(**snakemake.params.options),
        graph=Path(snakemake.input.graph),
        library=Path(snakemake.input.library),
        record=Path(snakemake.output.record),
    )
