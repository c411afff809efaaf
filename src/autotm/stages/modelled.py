"""Stages that model steps which no machine at hand can run; nothing is measured."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotm.check.plan import check_plan
from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of, load, require_writable, save
from autotm.model.graph import Graph
from autotm.model.limit import Limit, fixed_bytes
from autotm.model.machine import GpuFile, ModelledTier, load_gpu
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.plan import GPU_RIVALS, Plan
from autotm.model.profile import Profile, read_profile, write_profile
from autotm.model.provenance import provenance
from autotm.model.timeline import ModelledStep
from autotm.profile.extrapolate import extrapolate
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.solve import options_of

log = logging.getLogger(__name__)


def model_kernels_stage(context: Context, network: NetworkSource, paths: Paths) -> None:
    """Lower the training step of `network`, and model the times of its kernels on the machine's GPU.

    Raises:
        BadInputError: the machine is none that is modelled.
    """
    from autotm import zoo
    from autotm.lower.lowering import outlined_step
    from autotm.profile.modelled_gpu import roofline_profile, with_winograd

    gpu = gpu_of(context)
    require_writable(paths.graph, paths.profile)
    step = with_winograd(outlined_step(zoo.build_from(network, context.seed), paths.scale), gpu)
    came_from = provenance(context.machine, context.seed, **network.provenance)
    _write(paths, step, roofline_profile(step, gpu), came_from)


def _write(paths: Paths, graph: Graph, profile: Profile, came_from: Mapping[str, Any]) -> None:
    save(paths.graph, "graph", graph, came_from)
    write_profile(paths.profile, replace(profile, provenance={**came_from, **profile.provenance}))


def modelled_step_stage(context: Context, optimizer: str, limit: Limit, config: SolveConfig, paths: Paths) -> None:
    """Simulate the step of a plan, or of the rival `optimizer`, on the engines of the machine's GPU.

    Raises:
        BadInputError: the machine is none that is modelled.
        IllegalPlanError: the plan is not one for this step.
    """
    from autotm.solve.gpu_rivals import run_rival
    from autotm.solve.gpu_simulation import run_plan
    from autotm.solve.problem import Problem

    gpu, step = gpu_of(context), paths.modelled(optimizer, limit)
    placed = None if optimizer in GPU_RIVALS else load(paths.plan(optimizer, limit), "plan", Plan)
    inputs = PlacementInputs(paths)
    counted, times, copies = inputs.read(context.counts)
    problem = Problem(counted, times, copies, limit, options_of(context, config))
    require_writable(step)
    if placed is None:
        simulated = run_rival(optimizer, problem, gpu.managed)
    else:
        check_plan(counted, problem.profile, problem.links, placed, fast_operands_only=True)
        simulated = run_plan(problem, placed)
    modelled = ModelledStep(
        network=counted.network,
        scale=counted.scale,
        batch=counted.batch,
        machine=context.machine.slug,
        gpu=gpu.description,
        tier_reality="modelled",
        optimizer=optimizer,
        limit=limit,
        counts=str(context.counts),
        dram_limit_bytes=problem.limit_bytes,
        io_size=fixed_bytes(inputs.lowered),
        peak_live_bytes=counted.peak_live_bytes,
        oracle_us=sum(map(problem.profile.least_us, counted.kernels)),
        predicted_us=placed.objective_us if placed else None,
        bound_us=placed.bound_us if placed else None,
        gap=placed.gap if placed else None,
        solver_status=str(placed.status) if placed else "",
        **vars(simulated),
    )
    of_plan = {} if placed is None else {"plan_hash": hash_of(placed)}
    save(step, "modelled_step", modelled, provenance(context.machine, context.seed, **of_plan))
    log.info(
        "%s, limit %s: a step of %.6g us MODELLED%s",
        *(optimizer, limit, modelled.step_us, "" if modelled.fits else "; it does not fit the limit"),
    )


def gpu_of(context: Context) -> GpuFile:
    """Return the GPU that the context's machine models.

    Raises:
        BadInputError: it models none, or the GPU's file is faulty.
    """
    tier = context.machine.slow_tier
    if not isinstance(tier, ModelledTier):
        raise BadInputError(
            f"config/machines/{context.machine.name}.yaml: no machine of kind modelled; its "
            "steps run: ask for record.json"
        )
    return load_gpu(context.devices_dir, tier.device)


def extrapolate_stage(
    context: Context, sizes: Mapping[str, int], graphs: Sequence[Path], profiles: Sequence[Path], paths: Paths
) -> None:
    """Model the step at `sizes` from its graphs and profiles at small batches.

    Raises:
        BadInputError: the network has no batch, or its steps cannot be compared.
    """
    if "batch" not in sizes:
        raise BadInputError(
            f"scale {paths.scale}: sizes {dict(sizes)} have no batch, so nothing can be extrapolated over it"
        )
    steps = [(load(g, "graph", Graph), read_profile(p)) for g, p in zip(graphs, profiles, strict=True)]
    large = extrapolate(steps, sizes["batch"], paths.scale)
    came_from = {
        **provenance(context.machine, context.seed, sizes=dict(sizes)),
        "tier_reality": "modelled",
        "extrapolated": {
            "batches": list(large.batches),
            "step_error": large.step_error,
            "kernel_error": large.kernel_error,
        },
    }
    _write(paths, large.graph, large.profile, came_from)
