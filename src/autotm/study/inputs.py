"""The files that each figure reads, in the order of the study's config.

All raise BadInputError where the study has no such workload or machine, its scale has no sizes for a network, a limit
that a figure compares with is missing, or a machine cannot run an optimizer or has no GPU. Messages name the key.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from autotm.model.config import MODELLED, scale_named
from autotm.model.errors import BadInputError
from autotm.model.limit import ALL_FAST, ALL_SLOW, Limit
from autotm.model.machine import CudaTier, EmulatedTier, Machine, require_runnable
from autotm.model.paths import ControlPaths
from autotm.model.plan import MANAGED_MEMORY, SAVE_ON_CPU
from autotm.study.setup import FIRST_TOUCH, MOVER, Study, machine_named

_PAPER = "paper"
"""The scale of the paper's own sizes; its experiments on a GPU have scales of their own."""


def comparison_records(study: Study, workload: str) -> list[Path]:
    """Return the records that the comparisons of a workload read."""
    records = study.workload_records(workload)
    missing = [text for text in (ALL_SLOW, ALL_FAST) if text not in study.config.workloads[workload].limits]
    if missing:
        raise BadInputError(f'workloads.{workload}.limits: these figures compare with "{missing[0]}"; add it')
    return records


def predicted_records(study: Study, workload: str) -> list[Path]:
    """Return the records that figure 11 reads: those of the comparisons, and runs of further optimizers."""
    return comparison_records(study, workload) + study.further_records(workload, "predicted")


def rival_records(study: Study, workload: str) -> list[Path]:
    """Return the records that figure 7 reads: those of the comparisons, and of the workload's rivals."""
    return comparison_records(study, workload) + study.further_records(workload, "rivals")


def large_files(study: Study) -> dict[str, list[Path]]:
    """Return the records that figure 8 reads; at a modelled scale, where nothing runs, the plans and their graphs."""
    name = study.config.figures.fig8.workload
    records = study.workload_records(name) + study.further_records(name, "rivals")
    if not study.config.scale.endswith(MODELLED):
        return {"records": records}
    graphs = [study.paths(network).graph for network in study.config.workloads[name].networks]
    return {"plans": [record.with_name("plan.json") for record in records], "graphs": graphs}


def gpu_steps(study: Study) -> list[Path]:
    """Return the steps of figure 12: each network at each batch size, by the baseline, each optimizer and rival.

    On a modelled machine they are modelled steps, on one with a GPU records; PyTorch's own step has a record of its own
    kind there.
    """
    return [step for _, step in _gpu_steps(study)]


def measured_steps(study: Study) -> list[tuple[Study, Path]]:
    """Return every record that the study asks for, each once, with the study on the machine that measures it.

    Left out are workloads that its scale gives no sizes for, and figures that its machines cannot have.
    """
    records = [(study, record) for record in study.configured_records()]
    for figure in (front_records, device_records):
        with contextlib.suppress(BadInputError):
            records += [(study, record) for record in figure(study)]
    with contextlib.suppress(BadInputError):
        records += [(of_scale, step) for of_scale, step in _gpu_steps(study) if not of_scale.machine.is_modelled]
    return list({path: (of, path) for of, path in records}.values())


def gpu_timeline(study: Study) -> list[Path]:
    """Return the steps of figure 12 that are drawn engine by engine: of one network, at the first batch size."""
    of_scale, limit = _gpu_studies(study)[0]
    network = study.config.figures.fig12.timeline
    of_scale.network(network)
    return _gpu_steps_of(of_scale, network, limit)


def _gpu_steps(study: Study) -> list[tuple[Study, Path]]:
    config, all_steps = study.config.figures.fig12, []
    for of_scale, limit in _gpu_studies(study):
        for network in config.networks:
            if network not in of_scale.scale.networks:
                continue
            steps = _gpu_steps_of(of_scale, network, limit)
            # PyTorch's step is no program of ours, so its streams are not timed: it is in no timeline.
            if SAVE_ON_CPU in config.rivals and not of_scale.machine.is_modelled:
                steps.append(of_scale.paths(network).framework(SAVE_ON_CPU, limit))
            all_steps += [(of_scale, step) for step in steps]
    return all_steps


def _gpu_studies(study: Study) -> list[tuple[Study, Limit]]:
    """Return the study on the machine of figure 12, with the limit of device memory, for each scale that it shows."""
    config = study.config.figures.fig12
    machine = machine_named(study.config_dir, config.machine, None)
    tier = machine.slow_tier
    if not machine.is_modelled and not isinstance(tier, CudaTier):
        raise BadInputError(
            f"figures.fig12.machine: {config.machine} has slow memory of kind {tier.kind}; give a machine of kind "
            "cuda, or one of kind modelled"
        )
    if isinstance(tier, CudaTier) and not tier.managed_oversubscription:
        raise BadInputError(
            f"figures.fig12.machine: figure 12 compares with {MANAGED_MEMORY} beyond the GPU's memory, which can hang "
            f"a GPU; to risk it, set slow_tier.managed_oversubscription: true in config/machines/{machine.name}.yaml"
        )
    on_gpu, studies = study.on(machine), []
    if study.config.scale != _PAPER:
        return [(on_gpu, config.limit)]
    for name in config.paper.scales:
        at_scale = study.config.model_copy(update={"scale": name})
        of_scale = replace(on_gpu, config=at_scale, scale=scale_named(study.config_dir / "scales", name))
        studies.append((of_scale, config.paper.limit))
    return studies


def _gpu_steps_of(study: Study, network: str, limit: Limit) -> list[Path]:
    config, paths = study.config.figures.fig12, study.paths(network)
    names = (MANAGED_MEMORY, *config.optimizers, *config.rivals)
    if study.machine.is_modelled:
        return [paths.modelled(name, limit) for name in names]
    return [paths.record(name, limit) for name in names if name != SAVE_ON_CPU]


def front_records(study: Study) -> list[Path]:
    """Return the records of the front figure: both ends, and both optimizers at the limit between them."""
    front = study.config.figures.front
    points = [(MOVER, ALL_SLOW), (MOVER, front.limit), (MOVER, ALL_FAST), (FIRST_TOUCH, front.limit)]
    return study.records(front.network, points)


def device_machines(study: Study) -> list[Machine]:
    """Return the machines of the figure of devices, on as many threads as the study asks for."""
    threads = None if study.config.threads == "auto" else study.config.threads
    return [machine_named(study.config_dir, name, threads) for name in study.config.figures.devices.machines]


def device_records(study: Study) -> list[Path]:
    """Return the records of the figure of devices on the study's machine: all slow, and each optimizer at the limit."""
    devices = study.config.figures.devices
    for optimizer in devices.optimizers:
        require_runnable(study.machine, optimizer)
    points = [*((optimizer, devices.limit) for optimizer in devices.optimizers), (MOVER, ALL_SLOW)]
    return study.records(devices.network, points)


def device_names(study: Study) -> dict[str, str]:
    """Name the slow memory of each machine: by its emulated device, or by the machine where others share that."""
    tiers = {machine.name: machine.slow_tier for machine in device_machines(study)}
    devices = {name: tier.device for name, tier in tiers.items() if isinstance(tier, EmulatedTier)}
    alone = Counter(devices.values())
    return {name: devices[name] if alone[devices.get(name, "")] == 1 else name for name in tiers}


def heap_files(study: Study) -> dict[str, Path]:
    """Return the files that the heap plot reads: one plan with its program, and what they were made from."""
    heap = study.config.figures.heap
    paths, limit = study.paths(heap.network), heap.limit
    return {
        "graph": paths.graph,
        "profile": paths.profile,
        "plan": paths.plan(heap.optimizer, limit),
        "program": paths.program(heap.optimizer, limit),
    }


def link_files(study: Study) -> dict[str, Path]:
    """Return the input files of the figure of the links: the measurements, and the emulated device's file, if any."""
    device = getattr(study.machine.slow_tier, "device", None)
    of_device = {} if device is None else {"device": study.devices_dir / f"{device}.yaml"}
    return {"links": study.machine_paths.links, **of_device}


FUSION_FIGURES = ("gap", "sums", "search", "rewards", "labels", "policies", "placements")
"""Figures of fusion: how far TVM's is from the best, how well sums of kernels predict steps, what searches find; what
decisions are worth, what policies learn from that, and what they gain; how near searches come to the best placement."""
SEARCHES = ("annealing", "random_walk", "independent", "tree_parzen")
FUSION_STEPS = ("training", "inference")


def fusion_networks(study: Study) -> list[str]:
    """Return the networks that fusion is studied on, those that the scale has sizes for: trained on, then held out."""
    config = study.config.fusion
    known = {*study.scale.networks, *study.scale.blocks, *study.config.own_networks}
    return [name for name in (*config.training, *config.held_out) if name in known]


def fusion_files(study: Study, figure: str) -> dict[str, list[Path]]:
    """Return what a figure of fusion shows: the best groupings of steps, and searches for them.

    Raises:
        BadInputError: the scale has sizes for none of the networks.
    """
    if figure == "placements":
        placed = [name for name in study.config.fusion.placed if name in study.scale.networks]
        return {"placements": [study.paths(name).placements for name in placed]}
    networks = fusion_networks(study)
    searched = [name for name in networks if name in study.config.fusion.searched]
    if not networks or (figure == "search" and not searched):
        raise BadInputError(
            f"config/scales/{study.config.scale}.yaml has sizes for none of the networks of figure {figure}, which "
            f"fusion.{'searched' if networks else 'training and fusion.held_out'} names; add them"
        )
    if figure in {"gap", "sums"}:
        return {"optima": _of_steps(study, networks, "optimum")}
    if figure == "policies":
        return {"benches": _of_steps(study, networks, "bench"), "optima": _of_steps(study, networks, "optimum")}
    if figure == "labels":
        return {"policies": [study.paths(networks[0]).fusion_learning("policies")]}
    if figure == "rewards":
        of_learning = fusion_learning_files(study)
        selection = study.paths(networks[0]).fusion_learning("selection")
        return {"rewards": of_learning["rewards"], "promises": of_learning["promises"], "selection": [selection]}
    of_search = product(searched, SEARCHES, study.config.fusion.search_seeds)
    return {
        "optima": [study.paths(name).fusion(FUSION_STEPS[0]) for name in searched],
        "searches": [study.paths(name).fusion_search(algorithm, seed) for name, algorithm, seed in of_search],
    }


def fusion_learning_files(study: Study) -> dict[str, list[Path]]:
    """Return what policies are learned from: the networks for training, each as a training and an inference step.

    Raises:
        BadInputError: the scale has sizes for none of them.
    """
    networks = [name for name in fusion_networks(study) if name in study.config.fusion.training]
    if not networks:
        raise BadInputError(
            f"config/scales/{study.config.scale}.yaml has sizes for none of the networks that fusion.training names; "
            "add them"
        )
    files = {"problems": "problem", "rewards": "rewards", "promises": "promises"}
    return {key: _of_steps(study, networks, what) for key, what in files.items()}


def fusion_problem_files(study: Study, network: str, step: str) -> dict[str, Path]:
    """Return the files with groupings of a step that were measured, by what they are called there."""
    paths, config = study.paths(network), study.config.fusion
    is_searched = network in config.searched and step == FUSION_STEPS[0]
    of_search = product(SEARCHES, config.search_seeds) if is_searched else ()
    return {
        "optimum": paths.fusion(step),
        **{f"{algorithm}-{seed}": paths.fusion_search(algorithm, seed) for algorithm, seed in of_search},
    }


def _of_steps(study: Study, networks: Sequence[str], what: str) -> list[Path]:
    return [study.paths(name).fusion(step, what) for name in networks for step in FUSION_STEPS]


_LOOPS, _BRANCHES = ("lstm", "nasrnn"), ("blockdrop", "skipnet")
"""Models whose hidden size, and whose share of blocks, the study varies."""
CONTROL_FIGURES = (
    "fig2", "fig14_batch1", "fig14_batch64", "fig15", "fig16", "fig17", "fig18", "fig19", "fig20", "hidden_size"
)  # fmt: skip
"""Figures of control flow; where they differ, they are numbered as in the draft of Cocktailer's paper."""


def control_studies(study: Study, figure: str) -> list[Path]:
    """Return the times of models with control flow that a figure shows.

    Raises:
        BadInputError: the scale has sizes for none of its models.
    """
    models = list(study.scale.control_flow)
    cases = {
        "fig2": product(("seq2seq", "blockdrop", "rae"), ["b1"]),
        "fig14_batch1": product(models, ["b1"]),
        "fig14_batch64": product([model for model in models if model != "rae"], ["b64"]),  # A tree is one sample.
        "fig15": product((*_LOOPS, "attention", "seq2seq"), ["b1"]),
        "fig16": product(_BRANCHES, ["b1"]),
        "fig17": product(_BRANCHES, ["ratio"]),
        "fig18": product(["rae"], ["b1"]),
        "fig19": product(models, ["b1"]),
        "fig20": product(models, ["search"]),
        "hidden_size": product(_LOOPS, ["hidden"]),
    }
    paths = [
        ControlPaths(study.results, study.machine, study.config.scale, model).study(case)
        for model, case in cases[figure]
        if model in models
    ]
    if not paths:
        raise BadInputError(
            f"config/scales/{study.config.scale}.yaml: control_flow has no sizes for figure {figure}; add them"
        )
    return paths
