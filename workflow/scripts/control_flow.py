"""Rules control_flow and control_flow_search: time a model with control flow in all systems, or after all rewrites."""

from pathlib import Path

from autotm.model.config import ControlFlowConfig
from autotm.stages.control_flow import control_flow_search_stage, control_flow_stage
from autotm.stages.jobs import rule

with rule(snakemake) as job:
    config, output = ControlFlowConfig(**snakemake.params.control_flow), Path(snakemake.output.study)
    common = (job.context, snakemake.wildcards.model, snakemake.params.sizes)
    if snakemake.rule == "control_flow_search":
        control_flow_search_stage(*common, config, output)
    else:
        control_flow_stage(*common, snakemake.wildcards.case, config, Path(snakemake.input.search), output)
