# What the rules use: the checked study, and functions of wildcards (`snakemake --lint` wants them apart from rules).
# Nothing here runs a job.
from dataclasses import asdict, replace
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
    CONVENTIONAL,
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
    folder=r"figures(/[A-Za-z0-9_.-]+-\d+t)?(/[a-z][a-z0-9_]*)?",


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
    """An output that `snakemake --report` shows, with the caption `workflow/report/CAPTION.rst`.

    `labels` is a function of wildcards.
    """

    def labels_of_report(wildcards):
        # Only a report calls this, and before it reads captions. Imported above, docutils would slow every start.
        from autotm.study.report import register_directives

        register_directives()
        return labels(wildcards)

    return report(path, caption=f"../workflow/report/{caption}.rst", category=category, labels=labels_of_report)


def picture(path):
    """A figure's picture, which a report shows."""
    return in_report(path, "figure", "Figures", lambda wildcards: {"name": name_of(path, wildcards), "file": "picture"})


def table(path, category="Figures"):
    """A table that a report holds."""
    return in_report(path, "table", category, lambda wildcards: {"name": name_of(path, wildcards), "file": "table"})


def name_of(path, wildcards):
    """What a report calls a figure, e.g. laptop-1t/fig10, or a table."""
    stem = Path(str(path).format(**dict(wildcards.items()))).with_suffix("")
    return str(stem.relative_to("figures")) if stem.is_relative_to("figures") else stem.name


def machine_at(slug):
    """The machine that a path names, e.g. laptop-2t."""
    name, _, threads = slug.removesuffix("t").rpartition("-")
    return or_stop(machine_named, CONFIG, name, int(threads))


def machine_of(wildcards):
    """The machine that a result's path names."""
    return machine_at(wildcards.machine)


def places_of(wildcards):
    """The machine and the workload that a figure's folder names; an empty text where it names none."""
    names = wildcards.folder.split("/")[1:]
    machine = names.pop(0) if names and "-" in names[0] else ""
    return machine, "".join(names)


def study_on(wildcards):
    """The study on the machine that a figure's folder names; without one, on the config's."""
    machine, _ = places_of(wildcards)
    return STUDY.on(machine_at(machine)) if machine else STUDY


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
    limit_of(wildcards)
    if wildcards.scale.endswith(MODELLED):
        raise WorkflowError(
            f"scale {wildcards.scale} is modelled: there is nothing to run. Ask for program.json instead of record.json, "
            "or run the step itself at a scale that fits this machine"
        )
    return "results/{machine}/{scale}/{network}/kernels.so"


def placement_params(wildcards):
    """The optimizer and the limit that a path names."""
    or_stop(require_optimizer, wildcards.optimizer)
    return {"optimizer": wildcards.optimizer, "limit": str(limit_of(wildcards))}


def limit_of(wildcards):
    """The limit that a path names; each has one folder, where jobs look for its files."""
    limit = or_stop(Limit.parse, wildcards.limit)
    if limit.slug != wildcards.limit:
        raise WorkflowError(f"the files of limit {wildcards.limit} are in {limit.slug}/: ask for those")
    return limit


def convolution_files(study):
    """What the kernel plot shows."""
    paths = study.convolution_paths
    return {"graph": paths.graph, "profile": paths.profile}


def timing_study_file(wildcards):
    """What the figure of the timing study shows."""
    return study_on(wildcards).paths(STUDY.config.timing_study.network).timing_study


def case_study_records(study):
    """The records that figure 10 shows."""
    return study.case_study_records()


def device_records(study):
    """The records that the figure of devices shows."""
    machines = inputs.device_machines(study)
    return [record for machine in machines for record in inputs.device_records(study.on(machine))]


def gpu_steps(study):
    """What figure 12 shows: modelled steps, or records of a GPU."""
    return {"steps": inputs.gpu_steps(study)}


def gpu_timeline(study):
    """Those of one network, whose engines or streams figure 12's timeline shows."""
    return {"steps": inputs.gpu_timeline(study)}


def control_files(wildcards):
    """What a figure of control flow shows, on the machine that its folder names."""
    study = STUDY.on(machine_at(wildcards.on.removeprefix("/"))) if wildcards.on else STUDY
    return or_stop(inputs.control_studies, study, wildcards.figure)


def control_sizes(wildcards):
    """Sizes of a model with control flow at a scale."""
    sizes = scale_of(wildcards).control_flow
    if wildcards.model not in sizes:
        raise WorkflowError(
            f"config/scales/{wildcards.scale}.yaml: control_flow has no sizes of {wildcards.model}; add them"
        )
    return sizes[wildcards.model]


def fusion_files(wildcards):
    """What a figure of fusion shows, on the machine that its folder names."""
    study = STUDY.on(machine_at(wildcards.on.removeprefix("/"))) if wildcards.on else STUDY
    return or_stop(inputs.fusion_files, study, wildcards.figure)


def fusion_exhaustive(wildcards):
    """How the best grouping of a step is looked for at a scale; not of which networks."""
    return scale_of(wildcards).of_fusion(STUDY.config.fusion).exhaustive_settings


def fusion_search(wildcards):
    """How a step's fusion is searched by algorithms at a scale; not of which networks."""
    return scale_of(wildcards).of_fusion(STUDY.config.fusion).search_settings


def fusion_steps(wildcards):
    """How steps are timed that rewards and policies fuse, and of held-out networks how many random ones."""
    names = {"step_s"} | ({"random_policies"} if is_held_out(wildcards) else set())
    return scale_of(wildcards).of_fusion(STUDY.config.fusion).model_dump(include=names)


def fusion_placements(wildcards):
    """How placements of tensors are searched."""
    names = {"placed_limit", "placements", "search_seeds"}
    return STUDY.config.fusion.model_dump(mode="json", include=names)


def fusion_problem(wildcards):
    """Groupings of a step that were measured."""
    return or_stop(inputs.fusion_problem_files, learning_study(wildcards), wildcards.network, wildcards.step)


def fusion_learning(wildcards):
    """What policies are learned from."""
    return or_stop(inputs.fusion_learning_files, learning_study(wildcards))


def learning_study(wildcards):
    """The study on the machine and at the scale of a path."""
    config = STUDY.config.model_copy(update={"scale": wildcards.scale})
    return replace(STUDY, machine=machine_of(wildcards), scale=scale_of(wildcards), config=config)


def is_held_out(wildcards):
    """Whether no policy learns from a network."""
    return wildcards.network not in STUDY.config.fusion.training


def figure_files(wildcards):
    """The files that a figure is drawn from, by what they are."""
    name = wildcards.figure
    machine, workload = places_of(wildcards)
    if workload and name not in OF_WORKLOADS:
        raise WorkflowError(f"{wildcards.folder}/{name}.pdf: this figure shows no workload; leave {workload}/ out")
    if machine and name in OF_THE_STUDY:
        raise WorkflowError(f"{wildcards.folder}/{name}.pdf: the config names its machines; leave {machine}/ out")
    of_workload = (workload or CONVENTIONAL,) if name in OF_WORKLOADS else ()
    files, _ = FIGURES[name]
    found = or_stop(files, study_on(wildcards), *of_workload)
    return {"records": found} if isinstance(found, list) else found


def figure_settings(wildcards):
    """What some figures are drawn with besides: prices of memory, names of slow memories."""
    if wildcards.figure in ("fig9", "price_performance", "cost_performance"):
        return {"prices": STUDY.config.figures.prices.model_dump()}
    return {"devices": or_stop(inputs.device_names, STUDY)} if wildcards.figure == "devices" else {}


def modelled_plan(wildcards):
    """The plan that a modelled step follows; rivals have none."""
    limit_of(wildcards)
    is_rival = wildcards.optimizer in GPU_RIVALS
    return [] if is_rival else "results/{machine}/{scale}/{network}/{optimizer}/{limit}/plan.json"


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
    default = (workflow.resource_settings.default_resources or {}).get(resource)

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
