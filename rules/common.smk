# What the rules share: the checked study, and functions of wildcards. Nothing here runs a job.
from dataclasses import asdict
from pathlib import Path

from snakemake.exceptions import WorkflowError

from autotm.model.errors import AutotmError
from autotm.model.machine import require_runnable
from autotm.model.provenance import installed_version
from autotm.model.plan import GPU_RIVALS, SAVE_ON_CPU
from autotm.model.limit import Limit
from autotm.model.config import MODELLED, scale_named
from autotm.study import inputs
from autotm.study.setup import (
    load_study,
    machine_named,
    machine_settings,
    network_source,
    require_compiler,
    require_optimizer,
)


wildcard_constraints:
    machine=r"[A-Za-z0-9_.-]+-\d+t",
    scale=r"[A-Za-z0-9_.-]+",
    network=r"[a-z0-9_]+",
    optimizer=r"[a-z0-9-]+",
    limit=r"\d+to\d+|\d+([kMGT]|[KMGT]i)?B(-io)?",
    folder=r"([a-z][a-z0-9_]*/)?",
    on=r"([A-Za-z0-9_.-]+-\d+t/)?",


CONFIG = Path("config")
SOURCE = ", ".join(str(path) for path in workflow.configfiles)


def or_stop(function, *arguments):
    """Call a function; what a person can mend ends Snakemake with that one message."""
    try:
        return function(*arguments)
    except AutotmError as error:
        raise WorkflowError(str(error)) from None


STUDY = or_stop(load_study, config, SOURCE, CONFIG, Path("results"))
or_stop(require_compiler)

# Timing rules own the machine: one at a time, and with all cores, so that nothing runs beside them. The profile says
# so too; this holds where it is left out.
if "timing" not in set(workflow.global_resources):
    workflow.register_resource("timing", 1)


def in_report(path, caption, category, labels):
    """An output that `snakemake --report` shows, with the caption `workflow/report/CAPTION.rst`."""

    def labels_of_report(wildcards):
        # Only a report calls this, and before it reads captions. Imported above, docutils would slow every start.
        from autotm.study.report import register_directives

        register_directives()
        return labels

    return report(path, caption=f"../workflow/report/{caption}.rst", category=category, labels=labels_of_report)


def picture(path, caption="figure"):
    """A figure's picture, which a report shows."""
    return in_report(path, caption, "Figures", {"name": Path(path).with_suffix("").name, "file": "picture"})


def table(path, category="Figures"):
    """A table that a report holds."""
    return in_report(path, "table", category, {"name": Path(path).with_suffix("").name, "file": "table"})


def machine_at(slug):
    """The machine that a path names, e.g. laptop-2t."""
    name, _, threads = slug.removesuffix("t").rpartition("-")
    return or_stop(machine_named, CONFIG, name, int(threads))


def machine_of(wildcards):
    """The machine that a result's path names."""
    return machine_at(wildcards.machine)


def study_on(wildcards):
    """The study on the machine that a figure's folder names; without one, on the config's."""
    return STUDY.on(machine_at(wildcards.on.rstrip("/"))) if wildcards.on else STUDY


def machine_params(wildcards):
    """What of the machine and its device decides a measurement."""
    return machine_settings(CONFIG, machine_of(wildcards))


def scale_of(wildcards):
    """The scale file that a path names."""
    return or_stop(scale_named, CONFIG / "scales", wildcards.scale)


def source_of(wildcards):
    """Where a network comes from, and how large it is at a scale."""
    return or_stop(network_source, CONFIG, STUDY.config, wildcards.scale, wildcards.network)


def network_params(wildcards):
    """Name, sizes and so on of a network."""
    return {key: value for key, value in asdict(source_of(wildcards)).items() if value is not None}


def network_file(wildcards):
    """The Python file of one's own network; none for the zoo's."""
    return source_of(wildcards).file or []


def small_batches(wildcards, file):
    """A file of each step that a modelled one is extrapolated from."""
    scale = wildcards.scale.removesuffix(MODELLED)
    folder = Path("results") / wildcards.machine
    return [
        str(folder / f"{scale}-batch-{batch}" / wildcards.network / file) for batch in STUDY.config.extrapolate.batches
    ]


def compiled_kernels(wildcards):
    """The library that a step runs from, on a machine where it can; modelled steps have none."""
    if machine_of(wildcards).is_modelled:
        raise WorkflowError(
            f"{wildcards.machine} is a model of a GPU: nothing runs on it. Ask for modelled.json instead of record.json"
        )
    or_stop(require_runnable, machine_of(wildcards), wildcards.optimizer)
    if wildcards.scale.endswith(MODELLED):
        raise WorkflowError(
            f"scale {wildcards.scale} is modelled: there is nothing to run. Ask for program.json instead of record.json, "
            "or run the step itself at a scale that fits this machine"
        )
    return "results/{machine}/{scale}/{network}/kernels.so"


def placement_params(wildcards):
    """The optimizer and the limit that a path names."""
    or_stop(require_optimizer, wildcards.optimizer)
    return {"optimizer": wildcards.optimizer, "limit": str(or_stop(Limit.parse, wildcards.limit))}


def comparison_records(wildcards):
    """The records of the workload that a figure's folder names; without a folder, of the conventional one."""
    return or_stop(inputs.comparison_records, study_on(wildcards), wildcards.folder)


def predicted_records(wildcards):
    """The records that figure 11 judges predictions by."""
    return or_stop(inputs.predicted_records, study_on(wildcards), wildcards.folder)


def rival_records(wildcards):
    """The records that figure 7 shows: of the workload, and of its rivals."""
    return or_stop(inputs.rival_records, study_on(wildcards), wildcards.folder)


def case_study_records(wildcards):
    """The records that figure 10 shows."""
    return or_stop(study_on(wildcards).case_study_records, STUDY.config.figures.fig10)


def convolution_files(wildcards):
    """What the kernel plot shows."""
    paths = study_on(wildcards).convolution_paths
    return {"graph": paths.graph, "profile": paths.profile}


def heap_files(wildcards):
    """What the heap plot shows."""
    return inputs.heap_files(study_on(wildcards))


def link_files(wildcards):
    """What the figure of the links shows."""
    return inputs.link_files(study_on(wildcards))


def timing_study_file(wildcards):
    """What the figure of the timing study shows."""
    return study_on(wildcards).paths(STUDY.config.timing_study.network).timing_study


def device_records(wildcards):
    """The records that the figure of devices shows."""
    machines = or_stop(inputs.device_machines, STUDY)
    return [record for machine in machines for record in or_stop(inputs.device_records, STUDY.on(machine))]


def device_names(wildcards):
    """What slow memory each of its machines has."""
    return or_stop(inputs.device_names, STUDY)


def front_records(wildcards):
    """The records that the front figure shows."""
    return inputs.front_records(study_on(wildcards))


def gpu_steps(wildcards):
    """What figure 12 shows: modelled steps, or records of a GPU."""
    return or_stop(inputs.gpu_steps, STUDY)


def gpu_timeline(wildcards):
    """Those of one network, whose engines or streams figure 12's timeline shows."""
    return or_stop(inputs.gpu_timeline, STUDY)


def large_files(wildcards):
    """What figure 8 shows: records, or plans of modelled steps with their graphs."""
    records, plans, graphs = or_stop(inputs.large_files, study_on(wildcards))
    return {"records": records, "plans": plans, "graphs": graphs}


def timing_threads(wildcards):
    """All cores for what measures time, so that no other job runs beside it."""
    machine, cores = machine_of(wildcards), workflow.resource_settings.cores
    if machine.slurm is not None:
        return machine.slurm.cpus or machine.threads
    if workflow.is_main_process and workflow.non_local_exec and workflow.executor_plugin.name == "slurm":
        raise WorkflowError(
            f"config/machines/{machine.name}.yaml is this computer, not a kind of node: its jobs would be timed wherever "
            "they land. Describe the nodes in a machine file with slurm: {...}, see docs/cluster.md"
        )
    if cores is None or workflow.execution_settings is None:
        return (
            machine.threads
        )  # on a cluster of another kind, with a node of its own; or in a report, which runs nothing
    if cores < machine.threads:
        raise WorkflowError(
            f"--cores {cores}: machine {machine.slug} runs kernels on {machine.threads} threads; "
            f"give --cores {machine.threads} or more, or --config threads={cores}"
        )
    return cores


def convolution_batch(wildcards):
    """Images of the kernel plot's convolution at a scale."""
    return scale_of(wildcards).convolution_batch


def profile_options(wildcards):
    """How kernels are timed at a scale."""
    return scale_of(wildcards).of_profile(STUDY.config.profile).model_dump()


def run_options(wildcards):
    """How steps are timed at a scale."""
    return scale_of(wildcards).of_run(STUDY.config.run).model_dump()


def node_resource(resource, key, otherwise=None):
    """What the machine file says of a Slurm resource of its nodes; else what the profile does; else `otherwise`."""
    default = workflow.resource_settings._parsed_default_resources.get(resource)

    def value(wildcards, **job):
        kind = machine_of(wildcards).slurm
        chosen = getattr(kind, key) if kind else None
        if chosen is None and default is not None:
            chosen = default.evaluate(wildcards, **job).value
        return otherwise(wildcards) if chosen is None and otherwise else chosen

    return value


def gpu_of_node(wildcards):
    """The GPU that a job on a node with one asks for. Text on other nodes too: the executor looks into it."""
    machine = machine_of(wildcards)
    return "gpu:1" if machine.slurm and machine.fast_operands_only and not machine.is_modelled else ""


# What a job that measures asks of Slurm besides; profiles/slurm gives it the node for itself.
NODE = {
    "slurm_partition": node_resource("slurm_partition", "partition"),
    "slurm_account": node_resource("slurm_account", "account"),
    "constraint": node_resource("constraint", "constraint"),
    "gres": node_resource("gres", "gres", otherwise=gpu_of_node),
}


def memory_mb(first):
    """Memory of a job; twice as much each time that it is tried again, as it may have been killed for its memory."""
    return lambda wildcards, attempt: first * 2 ** (attempt - 1)


def scale_memory_mb(wildcards, attempt):
    """Memory of a job that touches every tensor of a step; more when it is tried again."""
    return memory_mb(scale_of(wildcards).memory_mb)(wildcards, attempt)


def scale_minutes(wildcards):
    """Time of a job that measures."""
    return scale_of(wildcards).minutes


def solve_minutes(wildcards):
    """The solver's limit, with room for building the model and for every smaller limit that offsets may need."""
    return 5 + round(10 * STUDY.config.solve.time_limit_s / 60)
