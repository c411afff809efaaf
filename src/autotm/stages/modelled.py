"""Stages that model steps which no machine at hand can run; nothing is measured."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotm.check.plan import check_plan
from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError
from autotm.model.files import hash_of, load, require_writable, save
from autotm.model.gpu_file import GpuFile, load_gpu
from autotm.model.graph import Graph
from autotm.model.limit import Limit, counting, fixed_bytes
from autotm.model.links import Links
from autotm.model.machine import ModelledTier
from autotm.model.network_source import NetworkSource
from autotm.model.plan import Plan
from autotm.model.profile import Profile, read_profile, write_profile
from autotm.model.provenance import provenance
from autotm.model.timeline import ModelledStep
from autotm.profile.extrapolate import extrapolate
from autotm.stages.context import Context
from autotm.stages.solve import options_of

log = logging.getLogger(__name__)


def model_kernels_stage(context: Context, network: NetworkSource, scale: str, *, graph: Path, profile: Path) -> None:
    """Lower the training step of `network`, and model the times of its kernels on the machine's GPU.

    Raises:
        BadInputError: the machine is none that is modelled.
    """
    from autotm import zoo
    from autotm.lower.lowering import outlined_step
    from autotm.profile.modelled_gpu import roofline_profile, with_winograd

    gpu = gpu_of(context)
    require_writable(graph, profile)
    step = with_winograd(outlined_step(zoo.build_from(network, context.seed), scale), gpu)
    came_from = provenance(context.machine, context.seed, **network.provenance)
    save(graph, "graph", step, came_from)
    modelled = roofline_profile(step, gpu)
    write_profile(profile, Profile(modelled.graph_hash, modelled.timings, {**came_from, **modelled.provenance}))


def modelled_step_stage(
    context: Context,
    optimizer: str,
    limit: Limit,
    config: SolveConfig,
    *,
    graph: Path,
    profile: Path,
    links: Path,
    plan: Path | None,
    step: Path,
) -> None:
    """Simulate the step of a plan, or of the rival `optimizer`, on the engines of the machine's GPU.

    Raises:
        BadInputError: the machine is none that is modelled, or there is no such rival.
        IllegalPlanError: the plan is not one for this step.
    """
    from autotm.solve.gpu_rivals import ManagedPaging, run_rival
    from autotm.solve.gpu_simulation import run_plan
    from autotm.solve.problem import Problem

    gpu = gpu_of(context)
    placed = None if plan is None else load(plan, "plan", Plan)
    whole = load(graph, "graph", Graph)
    counted = counting(whole, context.counts)
    problem = Problem(counted, read_profile(profile), load(links, "links", Links), limit, options_of(context, config))
    require_writable(step)
    if placed is None:
        faults = ManagedPaging(gpu.managed.block_bytes, gpu.managed.faulted_bytes_per_s)
        found = run_rival(optimizer, problem, faults)
    else:
        check_plan(counted, problem.profile, problem.links, placed, fast_operands_only=True)
        found = run_plan(problem, placed)
    made = ModelledStep(
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
        io_size=fixed_bytes(whole),
        peak_live_bytes=counted.peak_live_bytes,
        fits=found.fits,
        most_bytes=found.most_bytes,
        step_us=found.step_us,
        kernels_us=found.kernels_us,
        repeated_us=found.repeated_us,
        oracle_us=sum(map(problem.profile.least_us, counted.kernels)),
        in_bytes=found.in_bytes,
        out_bytes=found.out_bytes,
        predicted_us=placed.objective_us if placed else None,
        bound_us=placed.bound_us if placed else None,
        gap=placed.gap if placed else None,
        solver_status=str(placed.status) if placed else "",
        implementations=found.implementations,
        remark=found.remark,
        events=found.events,
    )
    of_plan = {} if placed is None else {"plan_hash": hash_of(placed)}
    save(step, "modelled_step", made, provenance(context.machine, context.seed, **of_plan))
    log.info(
        "%s, limit %s: a step of %.6g us MODELLED%s",
        *(optimizer, limit, made.step_us, "" if made.fits else "; it does not fit the limit"),
    )


def gpu_of(context: Context) -> GpuFile:
    """The GPU that the context's machine models.

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
    context: Context,
    scale: str,
    sizes: Mapping[str, int],
    *,
    graphs: Sequence[Path],
    profiles: Sequence[Path],
    graph: Path,
    profile: Path,
) -> None:
    """Model the step at `sizes` from its profiles at small batches.

    Raises:
        BadInputError: the network has no batch, or its steps cannot be compared.
    """
    if "batch" not in sizes:
        raise BadInputError(f"scale {scale}: sizes {dict(sizes)} have no batch, so nothing can be extrapolated over it")
    steps = [(load(g, "graph", Graph), read_profile(p)) for g, p in zip(graphs, profiles, strict=True)]
    found = extrapolate(steps, sizes["batch"], scale)
    came_from = {
        **provenance(context.machine, context.seed, sizes=dict(sizes)),
        "tier_reality": "modelled",
        "extrapolated": {
            "batches": list(found.batches),
            "step_error": found.step_error,
            "kernel_error": found.kernel_error,
        },
    }
    save(graph, "graph", found.graph, came_from)
    modelled = found.profile
    write_profile(profile, Profile(modelled.graph_hash, modelled.timings, {**came_from, **modelled.provenance}))
