# What the rules share: the checked study, and functions of wildcards. Nothing here runs a job.
from pathlib import Path

from snakemake.exceptions import WorkflowError

from autotm.model.errors import AutotmError
from autotm.model.limit import Limit
from autotm.model.study_config import load_scale
from autotm.study.setup import (
    export_source,
    load_study,
    machine_named,
    machine_settings,
    require_compiler,
    require_optimizer,
)


wildcard_constraints:
    machine=r"[A-Za-z0-9_.-]+-\d+t",
    scale=r"[A-Za-z0-9_.-]+",
    network=r"[a-z0-9_]+",
    optimizer=r"[a-z0-9-]+",
    limit=r"\d+to\d+|\d+[kMGT]?B",
    folder=r"([a-z][a-z0-9_]*/)?",


CONFIG = Path("config")
SOURCE = ", ".join(str(path) for path in workflow.configfiles)


def or_stop(function, *arguments):
    """Call a function; what a person can mend ends Snakemake with that one message."""
    try:
        return function(*arguments)
    except AutotmError as error:
        raise WorkflowError(str(error)) from None


export_source()
STUDY = or_stop(load_study, config, SOURCE, CONFIG, Path("results"))
or_stop(require_compiler)

# Timing rules own the machine: one at a time, and with all cores, so that nothing runs beside them. The profile says
# so too; this holds where it is left out.
if "timing" not in set(workflow.global_resources):
    workflow.register_resource("timing", 1)


def machine_of(wildcards):
    """The machine that a path names, e.g. laptop-2t."""
    name, _, threads = wildcards.machine.removesuffix("t").rpartition("-")
    return or_stop(machine_named, CONFIG, name, int(threads))


def machine_params(wildcards):
    """What of the machine and its device decides a measurement."""
    return machine_settings(CONFIG, machine_of(wildcards))


def scale_of(wildcards):
    """The scale file that a path names."""
    return or_stop(load_scale, CONFIG / "scales" / f"{wildcards.scale}.yaml")


def sizes_params(wildcards):
    """Batch, image and so on of a network at a scale."""
    networks = scale_of(wildcards).networks
    if wildcards.network not in networks:
        raise WorkflowError(
            f"config/scales/{wildcards.scale}.yaml: networks: no sizes for '{wildcards.network}' "
            f"(known: {', '.join(sorted(networks))})"
        )
    return networks[wildcards.network]


def placement_params(wildcards):
    """The optimizer and the limit that a path names."""
    or_stop(require_optimizer, wildcards.optimizer)
    return {"optimizer": wildcards.optimizer, "limit": str(or_stop(Limit.parse, wildcards.limit))}


def comparison_records(wildcards):
    """The records of the workload that a figure's folder names; without a folder, of the conventional one."""
    return or_stop(STUDY.comparison_records, wildcards.folder)


def large_records(wildcards):
    """The records of figure 8's workload."""
    return or_stop(STUDY.workload_records, STUDY.config.figures.fig8.workload)


def timing_threads(wildcards):
    """All cores for what measures time, so that no other job runs beside it."""
    machine, cores = machine_of(wildcards), workflow.resource_settings.cores
    if cores is None:  # on a cluster, where the job has its own node
        return machine.threads
    if cores < machine.threads:
        raise WorkflowError(
            f"--cores {cores}: machine {machine.slug} runs kernels on {machine.threads} threads; "
            f"give --cores {machine.threads} or more, or --config threads={cores}"
        )
    return cores


def convolution_batch(wildcards):
    """Images of the kernel plot's convolution at a scale."""
    return scale_of(wildcards).convolution_batch


def scale_memory_mb(wildcards):
    """Memory of a job that touches every tensor of a step."""
    return scale_of(wildcards).memory_mb


def scale_minutes(wildcards):
    """Time of a job that measures."""
    return scale_of(wildcards).minutes


def solve_minutes(wildcards):
    """The solver's limit, with room for building the model and one re-solve."""
    return 5 + round(3 * STUDY.config.solve.time_limit_s / 60)
